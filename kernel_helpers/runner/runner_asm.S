/* The parts of the runner that cannot be C: its header, the entry that changes stacks, the clone
 * of a thread, and the tail, the only code that stays in a restored process. */

    .section .vr_header, "ax"
    .globl vr_image
vr_image:
    .long 0x52534e56, 4
    .long vr_entry - vr_image
    .long vr_tail_start - vr_image
    .long vr_tail_end - vr_tail_start
    .long vr_tail_leader - vr_tail_start
    .long vr_tail_thread - vr_tail_start
    .long vr_tail_exit - vr_tail_start
    .long vr_code_end - vr_image
    .zero 180 /* what the encoder fills: see struct vr_header */

    .text
/* vr_entry(rdi = address of the stub's vDSO): runs on the stub's stack. */
    .globl vr_entry
vr_entry:
    mov %rdi, %r12
    lea vr_image(%rip), %rdi
    call vr_prepare
    /* rax = top of the scratch stack, or 0 on failure */
    test %rax, %rax
    jz 1f
    mov %rax, %rsp
    xor %ebp, %ebp
    lea vr_image(%rip), %rdi
    mov %r12, %rsi
    call vr_main
1:  mov $125, %edi
    mov $231, %eax
    syscall
    hlt

/* long vr_clone_thread(args, size, op, header): the child runs vr_run(header, op) on the stack
 * that the clone arguments name. */
    .globl vr_clone_thread
vr_clone_thread:
    mov %rdx, %r8
    mov %rcx, %r9
    mov $435, %eax
    syscall
    test %rax, %rax
    jnz 1f
    xor %ebp, %ebp
    mov %r9, %rdi
    mov %r8, %rsi
    call vr_run
    hlt
1:  ret

/* vr_leave(rdi = tail entry, rsi = frame, rdx = counter, rcx = end of first range,
 *          r8 = start of second range, r9 = header) */
    .globl vr_leave
vr_leave:
    mov %rdi, %rax
    mov %rsi, %rbp
    mov %rdx, %r12
    mov 40(%r9), %r13      /* window_start */
    mov %rcx, %r14
    sub %r13, %r14         /* bytes below the tail */
    mov %r8, %r15
    mov 104(%r9), %rbx      /* window_end */
    sub %r8, %rbx
    jmp *%rax

    .section .vr_tail, "ax"
vr_tail_start:
/* No stack is used from here on. The leader waits until no sibling needs scratch memory. */
vr_tail_leader:
1:  mov (%r12), %edx
    test %edx, %edx
    jz 2f
    mov %r12, %rdi
    xor %esi, %esi         /* FUTEX_WAIT */
    xor %r10d, %r10d
    mov $202, %eax
    syscall
    jmp 1b
2:  mov %r15, %rdi
    mov %rbx, %rsi
    mov $11, %eax
    syscall
    mov %r14, %rsi
    test %rsi, %rsi
    jz 3f
    mov %r13, %rdi
    mov $11, %eax
    syscall
3:  mov %rbp, %rsp
    mov $15, %eax
    syscall
    hlt
vr_tail_thread:
    lock decl (%r12)
    jnz 4f
    mov %r12, %rdi
    mov $1, %esi           /* FUTEX_WAKE; the page may be gone already: EFAULT is harmless */
    mov $1, %edx
    mov $202, %eax
    syscall
4:  mov %rbp, %rsp
    mov $15, %eax
    syscall
    hlt
/* A first thread that has ended: it goes on to its end. */
vr_tail_exit:
    lock decl (%r12)
    jnz 5f
    mov %r12, %rdi
    mov $1, %esi           /* FUTEX_WAKE */
    mov $1, %edx
    mov $202, %eax
    syscall
5:  mov %ebp, %edi
    mov $60, %eax
    syscall
    hlt
vr_tail_end:

    .section .note.GNU-stack, "", @progbits

/* The runner's code (kernel_helpers/runner), to be copied into every plan. */
    .section .rodata
    .globl venus_runner_image, venus_runner_image_end
    .balign 64
venus_runner_image:
    .incbin VENUS_RUNNER_FILE
venus_runner_image_end:
    .section .note.GNU-stack, "", @progbits

/* System V shared memory (attached, sparse, removed but attached, unattached, read-only), semaphores
 * with undo, message queues: with their ids, keys, owners and modes. */
#include "fidelity.h"

#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define BIG (8 << 20)

struct letter {
  long type;
  char text[64];
};

static int value(int set, int index) { return semctl(set, index, GETVAL); }

int main(void) {
  int spare = shmget(IPC_PRIVATE, 4096, 0600); /* the ids of the others are not the first ones */
  int segment = shmget(0x1234, BIG, IPC_CREAT | 0640), loose = shmget(IPC_PRIVATE, 5000, 0600);
  MUST(spare >= 0 && segment >= 0 && loose >= 0 && shmctl(spare, IPC_RMID, NULL) == 0);
  char *memory = shmat(segment, NULL, 0), *again = shmat(segment, NULL, SHM_RDONLY);
  MUST(memory != (void *)-1 && again != (void *)-1);
  strcpy(memory, "first");
  strcpy(memory + BIG - 100, "last");
  MUST(mprotect(memory + 4096, 4096, PROT_READ) == 0);
  char *brief = shmat(loose, NULL, 0);
  strcpy(brief, "nobody is attached");
  MUST(shmdt(brief) == 0);
  struct shmid_ds status;
  MUST(shmctl(loose, IPC_STAT, &status) == 0);
  status.shm_perm.uid = 1000;
  status.shm_perm.mode = 0444;
  MUST(shmctl(loose, IPC_SET, &status) == 0);
  int removed = shmget(0x77, 4096, IPC_CREAT | 0600);
  char *orphan = shmat(removed, NULL, 0);
  strcpy(orphan, "removed");
  MUST(shmctl(removed, IPC_RMID, NULL) == 0);

  int set = semget(0x99, 3, IPC_CREAT | 0600);
  MUST(set >= 0 && semctl(set, 0, SETVAL, 5) == 0 && semctl(set, 1, SETVAL, 1) == 0 && semctl(set, 2, SETVAL, 7) == 0);
  int queue = msgget(0x55, IPC_CREAT | 0622);
  struct letter one = {3, "third kind"}, two = {1, "first kind"}, empty = {9, ""};
  MUST(msgsnd(queue, &one, 10, 0) == 0 && msgsnd(queue, &two, 10, 0) == 0 && msgsnd(queue, &empty, 0, 0) == 0);

  int go[2];
  MUST(pipe(go) == 0);
  pid_t child = fork();
  if (child == 0) { /* holds two of semaphore 0 and the only one of 1; ends when told to */
    struct sembuf take[] = {{0, -2, SEM_UNDO}, {1, -1, SEM_UNDO}, {2, 3, 0}};
    char byte;
    close(go[1]);
    if (semop(set, take, 3) < 0)
      _exit(1);
    strcpy(memory + 8192, "from the child");
    if (read(go[0], &byte, 1) != 1)
      _exit(2);
    _exit(strcmp(memory, "first") == 0 ? 0 : 3);
  }
  close(go[0]);
  while (value(set, 0) != 3)
    pause_ms(1);
  pid_t waiter = fork();
  if (waiter == 0) { /* waits for semaphore 1 */
    struct sembuf wait = {1, -1, 0};
    close(go[1]);
    _exit(semop(set, &wait, 1) == 0 ? 0 : 1);
  }
  pause_ms(20);

  ready_and_wait();

  CHECK(strcmp(memory, "first") == 0 && strcmp(memory + BIG - 100, "last") == 0 && strcmp(again, "first") == 0);
  CHECK(strcmp(memory + 8192, "from the child") == 0);
  strcpy(memory + 100, "seen by both");
  CHECK(strcmp(again + 100, "seen by both") == 0);
  CHECK(shmget(0x1234, 0, 0) == segment && shmctl(segment, IPC_STAT, &status) == 0);
  CHECK(status.shm_segsz == BIG && (status.shm_perm.mode & 0777) == 0640 && status.shm_nattch == 12);
  CHECK(shmctl(loose, IPC_STAT, &status) == 0 && status.shm_perm.uid == 1000 && (status.shm_perm.mode & 0777) == 0444);
  CHECK(status.shm_segsz == 5000);
  brief = shmat(loose, NULL, SHM_RDONLY);
  CHECK(brief != (void *)-1 && strcmp(brief, "nobody is attached") == 0);
  CHECK(strcmp(orphan, "removed") == 0 && shmctl(removed, IPC_STAT, &status) == 0 && (status.shm_perm.mode & SHM_DEST));
  CHECK(shmget(0x77, 0, 0) < 0 && errno == ENOENT);

  CHECK(semget(0x99, 0, 0) == set && value(set, 0) == 3 && value(set, 1) == 0 && value(set, 2) == 10);
  int result;
  CHECK(waitpid(waiter, &result, WNOHANG) == 0);
  CHECK(write(go[1], "x", 1) == 1 && waitpid(child, &result, 0) == child && result == 0);
  CHECK(value(set, 0) == 5 && value(set, 2) == 10);
  CHECK(waitpid(waiter, &result, 0) == waiter && result == 0 && value(set, 1) == 0);

  struct letter got = {0, ""};
  struct msqid_ds letters;
  CHECK(msgget(0x55, 0) == queue && msgctl(queue, IPC_STAT, &letters) == 0 && letters.msg_qnum == 3);
  CHECK((letters.msg_perm.mode & 0777) == 0622);
  CHECK(msgrcv(queue, &got, sizeof got.text, 1, IPC_NOWAIT) == 10 && memcmp(got.text, "first kind", 10) == 0);
  CHECK(msgrcv(queue, &got, sizeof got.text, 0, IPC_NOWAIT) == 10 && got.type == 3 && memcmp(got.text, "third kind", 10) == 0);
  CHECK(msgrcv(queue, &got, sizeof got.text, 0, IPC_NOWAIT) == 0 && got.type == 9);
  finish();
}

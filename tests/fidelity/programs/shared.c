/* Shared anonymous memory, memfd mapped by two processes, seals. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/mman.h>

struct shared {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  int asked, answered;
};

int main(void) {
  struct shared *anonymous =
      mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUST(anonymous != MAP_FAILED);
  pthread_mutexattr_t mutex_attribute;
  pthread_mutexattr_init(&mutex_attribute);
  pthread_mutexattr_setpshared(&mutex_attribute, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&anonymous->mutex, &mutex_attribute);
  pthread_condattr_t condition_attribute;
  pthread_condattr_init(&condition_attribute);
  pthread_condattr_setpshared(&condition_attribute, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&anonymous->condition, &condition_attribute);
  strcpy((char *)anonymous + 700000, "shared page");
  int memory = memfd_create("table", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  MUST(ftruncate(memory, 16 << 20) == 0);
  char *table = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  strcpy(table + (9 << 20), "far away");
  MUST(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  pid_t child = fork();
  if (child == 0) {
    pthread_mutex_lock(&anonymous->mutex);
    while (!anonymous->asked)
      pthread_cond_wait(&anonymous->condition, &anonymous->mutex);
    anonymous->answered = anonymous->asked + 1;
    strcpy(table + (3 << 20), "from the child");
    pthread_cond_broadcast(&anonymous->condition);
    pthread_mutex_unlock(&anonymous->mutex);
    _exit(0);
  }
  pause_ms(100);

  ready_and_wait();

  CHECK(strcmp((char *)anonymous + 700000, "shared page") == 0);
  CHECK(strcmp(table + (9 << 20), "far away") == 0);
  pthread_mutex_lock(&anonymous->mutex);
  anonymous->asked = 10;
  pthread_cond_broadcast(&anonymous->condition);
  while (!anonymous->answered)
    pthread_cond_wait(&anonymous->condition, &anonymous->mutex);
  pthread_mutex_unlock(&anonymous->mutex);
  CHECK(anonymous->answered == 11 && strcmp(table + (3 << 20), "from the child") == 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  char text[16] = "";
  CHECK(pread(memory, text, 8, 9 << 20) == 8 && strcmp(text, "far away") == 0);
  CHECK(fcntl(memory, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW));
  CHECK(ftruncate(memory, 1) < 0 && errno == EPERM);
  finish();
}

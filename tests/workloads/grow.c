/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * grow KIND KIB MS: every MS milliseconds takes KIB KiB more of a kind of memory, or, of the healthy kinds, does what
 * looks like it. Runs until it is killed.
 *
 *   leak:    mmap (never unmapped), heap (malloc, never freed), shm (a file in /dev/shm), threads, fds
 *   healthy: collect (malloc, all freed again and again), warm (grows at first, then stays), cache (writes a file),
 *            static (all at once), churn (takes and gives back at random)
 */
#include "workload.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define COLLECT_AFTER 20
#define WARM_STEPS 30
#define STATIC_STEPS 40
#define STACK_BYTES (256 * 1024)
#define CHURN_BLOCKS 32
#define MOST_BLOCKS 64

static void *blocks[MOST_BLOCKS];

static void *touched(size_t bytes) {
  void *block = malloc(bytes);

  if (!block)
    die("malloc");
  memset(block, 7, bytes);
  return block;
}

static void map_more(size_t bytes) {
  void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  if (area == MAP_FAILED)
    die("mmap");
  memset(area, 7, bytes);
}

static void write_more(const char *path, size_t bytes) {
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  void *block = touched(bytes);

  if (fd < 0 || write(fd, block, bytes) != (ssize_t)bytes)
    die(path);
  close(fd);
  free(block);
}

static void *sleeper(void *bytes)
{
	volatile char stack[STACK_BYTES];

	for (size_t i = 0; i < sizeof(stack) && i < (size_t)bytes; i += 512)
		stack[i] = 7;
	for (;;)
		pause();
	return NULL;
}

static void one_thread(size_t bytes) {
  pthread_t thread;

  if (pthread_create(&thread, NULL, sleeper, (void *)bytes))
    die("pthread_create");
}

static void open_more(size_t bytes) {
  for (int i = 0; i < 8; i++)
    if (open("/proc/self/maps", O_RDONLY) < 0)
      die("open");
  touched(bytes);
}

static void collect(unsigned long step_number, size_t bytes) {
  unsigned long at = step_number % COLLECT_AFTER;

  if (!at)
    for (int i = 0; i < COLLECT_AFTER; i++) {
      free(blocks[i]);
      blocks[i] = NULL;
    }
  blocks[at] = touched(bytes);
}

static void churn(unsigned long step_number, size_t bytes)
{
	int at = rand() % CHURN_BLOCKS;

	for (int i = 0; !step_number && i < CHURN_BLOCKS; i += 2)
		blocks[i] = touched(bytes);
	free(blocks[at]);
	blocks[at] = rand() % 2 ? touched(bytes) : NULL;
}

int main(int argc, char **argv) {
  if (argc != 4)
    usage("grow mmap|heap|shm|threads|fds|collect|warm|cache|static|churn KIB "
          "MS");
  const char *kind = argv[1];
  size_t bytes = number(argv[2]) * 1024;
  unsigned long ms = number(argv[3]);
  struct timespec pause_time = {ms / 1000, (long)(ms % 1000) * 1000000};

  /* A huge page would take in the stacks of eight threads at once. */
  if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
    die("prctl");
  for (unsigned long i = 0;; i++) {
    if (!strcmp(kind, "mmap"))
      map_more(bytes);
    else if (!strcmp(kind, "heap"))
      touched(bytes);
    else if (!strcmp(kind, "shm"))
      write_more("/dev/shm/grow", bytes);
    else if (!strcmp(kind, "threads"))
      one_thread(bytes);
    else if (!strcmp(kind, "fds"))
      open_more(bytes);
    else if (!strcmp(kind, "collect"))
      collect(i, bytes);
    else if (!strcmp(kind, "cache"))
      write_more("/tmp/cache", bytes);
    else if (!strcmp(kind, "churn"))
      churn(i, bytes);
    else if (!strcmp(kind, "warm") && i < WARM_STEPS)
      touched(bytes);
    else if (!strcmp(kind, "static") && !i)
      touched(bytes * STATIC_STEPS);
    nanosleep(&pause_time, NULL);
  }
}

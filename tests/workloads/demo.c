/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * demo: a bad day in a container, in sequence and with short pauses, for scripts/demo.
 * Shared memory of every kind, mappings, advice, a full /dev/shm (ENOSPC to a write, SIGBUS to a child that
 * touches a mapping), and at last more memory than the container may have.
 * Works in a container with a small /dev/shm and a memory limit; elsewhere it stops before it harms.
 */
#include "workload.h"

#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define LEAK (512 * MIB)

static void breathe(void)
{
	usleep(200 * 1000);
}

static int create(const char *name, unsigned long length)
{
	int file = shm_open(name, O_CREAT | O_RDWR, 0600);

	if (file < 0)
		die("shm_open");
	if (ftruncate(file, (off_t)length))
		die("ftruncate");
	return file;
}

static char *map_file(int file, unsigned long length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static char *map_anonymous(unsigned long length)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static void posix_shared_memory(void)
{
	int file = create("/batch-0", 8 * MIB);

	memset(map_file(file, 8 * MIB), 1, 8 * MIB);
	close(file);
	step("posix: /dev/shm/batch-0 holds 8 MiB");
	close(create("/scratch", MIB));
	if (shm_unlink("/scratch"))
		die("shm_unlink");
	step("posix: /dev/shm/scratch came and went");
}

static void sysv_shared_memory(void)
{
	int segment = shmget(0x5eed, 4 * MIB, IPC_CREAT | 0600);
	char *memory;

	if (segment < 0)
		die("shmget");
	memory = shmat(segment, NULL, 0);
	if (memory == (char *)-1)
		die("shmat");
	memset(memory, 1, 4 * MIB);
	if (shmdt(memory))
		die("shmdt");
	if (shmctl(segment, IPC_RMID, NULL))
		die("shmctl");
	step("sysv: a segment of 4 MiB, attached, filled, removed");
}

static void memory_file(void)
{
	int file = memfd_create("ring-buffer", MFD_CLOEXEC);

	if (file < 0 || ftruncate(file, (off_t)(2 * MIB)))
		die("memfd_create");
	memset(map_file(file, 2 * MIB), 1, 2 * MIB);
	step("memfd: ring-buffer holds 2 MiB");
}

static void mappings_and_advice(void)
{
	char *memory = map_anonymous(16 * MIB);

	madvise(memory, 16 * MIB, MADV_HUGEPAGE);
	memset(memory, 1, 16 * MIB);
	for (unsigned long at = 0; at < 8 * MIB; at += MIB)
		madvise(memory + at, MIB, MADV_DONTNEED);
	if (munmap(memory, 16 * MIB))
		die("munmap");
	step("mmap: 16 MiB mapped, advised, half of it given back, unmapped");
}

static void full_by_write(void)
{
	static char chunk[MIB];
	unsigned long written = 0;
	int file = create("/checkpoint", 0);
	ssize_t got;

	while ((got = write(file, chunk, sizeof(chunk))) > 0)
		written += (unsigned long)got;
	step("full: write to /dev/shm/checkpoint: %s after %lu MiB", error_name(errno), written / MIB);
	close(file);
}

static void full_by_touch(void)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (child == 0) {
		prctl(PR_SET_NAME, "loader-worker");
		memset(map_file(create("/batch-1", 8 * MIB), 8 * MIB), 1, 8 * MIB);
		_exit(0);
	}
	if (waitpid(child, &status, 0) < 0)
		die("waitpid");
	step("full: the worker that touched /dev/shm/batch-1 ended with signal %d",
	     WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void out_of_memory(void)
{
	step("oom: takes memory until the limit");
	for (unsigned long done = 0; done < LEAK; done += 4 * MIB) {
		memset(map_anonymous(4 * MIB), 1, 4 * MIB);
		usleep(20 * 1000);
	}
	step("oom: still alive after %lu MiB; is there no memory limit?", LEAK / MIB);
}

int main(void)
{
	static void (*const scenes[])(void) = {
		posix_shared_memory, sysv_shared_memory, memory_file,	mappings_and_advice,
		full_by_write,	     full_by_touch,	 out_of_memory,
	};
	struct statvfs fs;

	if (statvfs("/dev/shm", &fs) || fs.f_blocks * fs.f_frsize > 1024 * MIB) {
		fprintf(stderr, "demo: wants a container with a small /dev/shm\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		scenes[i]();
		breathe();
	}
	return 1;
}

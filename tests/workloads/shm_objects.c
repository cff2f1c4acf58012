/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * shm_objects: one piece of shared memory of each kind, of different sizes, then /dev/shm/ready, and waits.
 * Asked and written MiB: mapped 3/3, held 2/1, left 5/5, gone 11/1, memfd 7/2, SysV 1/1 attached and 4/4 left,
 * anonymous 6/6.
 */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>

static void fill(int fd, unsigned long asked_mib, unsigned long written_mib)
{
	char *memory;

	if (fd < 0)
		die("open");
	if (ftruncate(fd, asked_mib * MIB))
		die("ftruncate");
	memory = mmap(NULL, asked_mib * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, written_mib * MIB);
	munmap(memory, asked_mib * MIB);
}

static int create(const char *path, unsigned long asked_mib, unsigned long written_mib)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);

	fill(fd, asked_mib, written_mib);
	return fd;
}

static void map(int fd, unsigned long mib)
{
	if (mmap(NULL, mib * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
		die("mmap");
	close(fd);
}

static void segment(key_t key, unsigned long mib, int attached)
{
	int id = shmget(key, mib * MIB, IPC_CREAT | 0600);
	void *memory = shmat(id, NULL, 0);

	if (id < 0 || memory == (void *)-1)
		die("shmget");
	memset(memory, 1, mib * MIB);
	if (!attached && shmdt(memory))
		die("shmdt");
}

int main(void)
{
	int fd;
	char *memory;

	begin();
	map(create("/dev/shm/mapped", 3, 3), 3);
	create("/dev/shm/held", 2, 1);
	close(create("/dev/shm/left", 5, 5));
	create("/dev/shm/gone", 11, 1);
	unlink("/dev/shm/gone");
	fd = memfd_create("work", MFD_CLOEXEC);
	fill(fd, 7, 2);
	map(fd, 7);
	segment(0x5eed0001, 1, 1);
	segment(0x5eed0002, 4, 0);
	memory = mmap(NULL, 6 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, 6 * MIB);
	close(open("/dev/shm/ready", O_RDWR | O_CREAT, 0600));
	for (;;)
		pause();
}

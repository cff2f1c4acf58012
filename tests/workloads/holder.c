/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * holder: holds a known amount of every kind of memory, says so, and waits at its gate.
 * usage: holder ANON_MIB FILE_MIB NAME_OF_FILE
 * anonymous (ANON_MIB), page cache (FILE_MIB written to the file, not mapped), a file in /dev/shm mapped (7 MiB) and one
 * that nobody maps (5 MiB), a deleted one that is open (3 MiB), a memfd (11 MiB), a SysV segment (13 MiB), shared
 * anonymous memory (2 MiB), and a child process with 17 MiB of its own.
 */
#include "workload.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>

static void *filled(int file, unsigned long length, int flags)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, file, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, length);
	return memory;
}

static int sized(int file, unsigned long length)
{
	if (file < 0 || ftruncate(file, (off_t)length))
		die("make a file");
	return file;
}

static void write_file(int file, unsigned long length)
{
	static char chunk[MIB];

	if (file < 0)
		die("open");
	memset(chunk, 1, sizeof(chunk));
	for (unsigned long done = 0; done < length; done += MIB)
		if (write(file, chunk, MIB) != (ssize_t)MIB)
			die("write");
}

static int shm_file(const char *name)
{
	return shm_open(name, O_CREAT | O_RDWR, 0600);
}

static void shared_memory(void)
{
	int segment = shmget(0x5eed, 13 * MIB, IPC_CREAT | 0600);
	int gone;
	void *attached;

	filled(sized(shm_file("/rtdebug-mapped"), 7 * MIB), 7 * MIB, MAP_SHARED);
	write_file(shm_file("/rtdebug-lonely"), 5 * MIB);
	gone = shm_file("/rtdebug-gone");
	write_file(gone, 3 * MIB);
	if (shm_unlink("/rtdebug-gone"))
		die("shm_unlink");
	filled(sized(memfd_create("rtdebug \033[31mred\nname", MFD_CLOEXEC), 11 * MIB), 11 * MIB, MAP_SHARED);
	filled(-1, 2 * MIB, MAP_SHARED | MAP_ANONYMOUS);
	attached = shmat(segment, NULL, 0);
	if (attached == (void *)-1)
		die("shmat");
	memset(attached, 1, 13 * MIB);
	shmctl(segment, IPC_RMID, NULL);
}

static void child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "odd) name\n(");
	filled(-1, 17 * MIB, MAP_PRIVATE | MAP_ANONYMOUS);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	child();
	filled(-1, strtoul(argv[1], NULL, 10) * MIB, MAP_PRIVATE | MAP_ANONYMOUS);
	write_file(open(argv[3], O_CREAT | O_RDWR | O_TRUNC, 0600), strtoul(argv[2], NULL, 10) * MIB);
	shared_memory();
	usleep(100 * 1000); /* the child fills its own meanwhile */
	step("ready");
	for (;;)
		pause();
}

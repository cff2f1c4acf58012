/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * working_set ANON_MIB COLD_MIB HOT_MIB FILE: holds ANON_MIB of anonymous memory and reads the first HOT_MIB of FILE
 * again and again; the COLD_MIB behind them are in the page cache and used by nobody. Until it is killed.
 */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

static void fill(int fd, unsigned long bytes)
{
	static char block[MIB];

	memset(block, 'x', sizeof(block));
	for (unsigned long done = 0; done < bytes; done += sizeof(block))
		if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
			die("write");
	if (fsync(fd))
		die("fsync");
}

static void read_again(int fd, unsigned long bytes)
{
	static char block[MIB];

	for (unsigned long done = 0; done < bytes; done += sizeof(block))
		if (pread(fd, block, sizeof(block), (off_t)done) < 0)
			die("pread");
}

int main(int argc, char **argv)
{
	struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };

	if (argc != 5)
		usage("working_set ANON_MIB COLD_MIB HOT_MIB FILE");

	unsigned long anon = number(argv[1]) * MIB;
	unsigned long cold = number(argv[2]) * MIB;
	unsigned long hot = number(argv[3]) * MIB;
	int fd = open(argv[4], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0)
		die(argv[4]);
	begin();
	if (anon && mmap(NULL, anon, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED)
		die("mmap");
	fill(fd, hot + cold);
	for (int round = 0; round < 3; round++)
		read_again(fd, hot);
	step("ready anon=%lu cold=%lu hot=%lu", anon, cold, hot);
	for (;;) {
		read_again(fd, hot);
		nanosleep(&pause, NULL);
	}
}

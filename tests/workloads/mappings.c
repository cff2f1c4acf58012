/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mappings: waits at its gate, then becomes a crowd of processes with many mappings that stays.
 * usage: mappings PROCESSES MAPPINGS FILE
 * Each process maps MAPPINGS pieces, alternately of memory of its own (8 KiB, one page touched) and of FILE (64 KiB,
 * all pages mapped, none next to each other): as a crowd of interpreters with their libraries has them.
 */
#include "workload.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define PAGE 4096UL
#define PIECE (64UL * 1024UL)

static void map_pieces(unsigned long count, int file)
{
	for (unsigned long i = 0; i < count; i++) {
		int own = i % 2;
		int flags = own ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
		/* neighbours that differ in their rights are not joined to one mapping */
		int rights = own ? PROT_READ | PROT_WRITE | (i % 4 == 1 ? PROT_EXEC : 0) : PROT_READ;
		char *piece = mmap(NULL, own ? 2 * PAGE : PIECE, rights, flags, own ? -1 : file, 0);

		if (piece == MAP_FAILED)
			die("mmap");
		if (own)
			piece[0] = 1;
	}
}

int main(int argc, char **argv)
{
	unsigned long processes, mappings;
	int file;

	if (argc != 4)
		usage("mappings PROCESSES MAPPINGS FILE");
	processes = number(argv[1]);
	mappings = number(argv[2]);
	file = open(argv[3], O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, (off_t)PIECE))
		die("file");
	begin();
	for (unsigned long i = 0; i < processes; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		map_pieces(mappings, file);
		for (;;)
			pause();
	}
	for (;;)
		pause();
}

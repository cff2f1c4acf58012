/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fork_storm PROCESSES [ALIVE]: that many short-lived processes, at most ALIVE (1) at a time. Each makes one
 * madvise call and exits.
 */
#include "workload.h"

#include <sys/mman.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long processes, at_once, alive = 0;
	void *memory;

	if (argc < 2)
		usage("fork_storm PROCESSES [ALIVE]");
	processes = number(argv[1]);
	at_once = argc > 2 ? number(argv[2]) : 1;
	begin();
	memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	for (unsigned long i = 0; i < processes; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (child == 0)
			_exit(madvise(memory, page, MADV_DONTNEED) != 0);
		if (++alive == at_once) {
			if (wait(NULL) < 0)
				die("wait");
			alive--;
		}
	}
	while (alive--)
		if (wait(NULL) < 0)
			die("wait");
	step("fork_storm processes=%lu", processes);
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * crowd PROCESSES: that many processes wait until told to go; then each forks one more, which makes one madvise
 * call. All of them are there before the gate: a tracer finds them when it attaches.
 */
#include "workload.h"

#include <sys/mman.h>
#include <sys/wait.h>

static int advise_in_child(void *memory, size_t page)
{
	int status;
	pid_t child = fork();

	if (child == 0)
		_exit(madvise(memory, page, MADV_DONTNEED) != 0);
	return child < 0 || wait(&status) < 0 || status != 0;
}

int main(int argc, char **argv)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long processes, failed = 0;
	int gate[2];
	void *memory;
	char byte;

	if (argc < 2)
		usage("crowd PROCESSES");
	processes = number(argv[1]);
	memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	begin();
	if (pipe(gate))
		die("pipe");
	for (unsigned long i = 0; i < processes; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (child == 0) {
			close(gate[1]);
			if (read(gate[0], &byte, 1) < 0)
				_exit(1);
			_exit(advise_in_child(memory, page));
		}
	}
	step("waiting processes=%lu", processes);
	if (getenv("WORKLOAD_WAIT") && read(STDIN_FILENO, &byte, 1) < 0)
		die("read from standard input");
	close(gate[1]);
	for (unsigned long i = 0; i < processes; i++) {
		int status;

		if (wait(&status) < 0)
			die("wait");
		failed += status != 0;
	}
	step("crowd calls=%lu failed=%lu", processes, failed);
	return failed != 0;
}

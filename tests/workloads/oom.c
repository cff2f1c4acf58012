/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * oom BYTES [anon|shm] [worker]: touches BYTES, 1 MiB at a time, until the limit of its cgroup kills it.
 * worker: a child does it; the parent survives and says how the child ended.
 * At most 1 GiB: without a limit this must not hurt the host.
 */
#include "workload.h"

#include <sys/mman.h>
#include <sys/wait.h>

static void eat(unsigned long length, int sharing)
{
	for (unsigned long done = 0; done < length; done += MIB) {
		char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | sharing, -1, 0);

		if (memory == MAP_FAILED)
			die("mmap");
		memset(memory, 1, MIB);
		if (done % (16 * MIB) == 0)
			step("touch pid=%d length_bytes=%lu", getpid(), done + MIB);
	}
	step("survived length_bytes=%lu", length);
}

int main(int argc, char **argv)
{
	unsigned long length;
	int sharing, status;
	pid_t child;

	if (argc < 2)
		usage("oom BYTES [anon|shm] [worker]");
	length = number(argv[1]);
	if (length > 1024 * MIB)
		usage("at most 1 GiB");
	sharing = argc > 2 && !strcmp(argv[2], "shm") ? MAP_SHARED : MAP_PRIVATE;
	begin();
	if (argc < 4) {
		eat(length, sharing);
		return 0;
	}
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		eat(length, sharing);
		_exit(0);
	}
	if (waitpid(child, &status, 0) < 0)
		die("waitpid");
	step("worker pid=%d signal=%d", child, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	return 0;
}

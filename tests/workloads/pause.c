/* SPDX-License-Identifier: GPL-2.0-or-later */
/* pause: does nothing until SIGTERM or SIGINT; fit to be a container's first process (it reaps). */
#include "workload.h"

#include <signal.h>
#include <sys/wait.h>

static void leave(int signal)
{
	(void)signal;
	_exit(0);
}

static void reap(int signal)
{
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
	signal(SIGTERM, leave);
	signal(SIGINT, leave);
	signal(SIGCHLD, reap);
	step("pause pid=%d", getpid());
	for (;;)
		pause();
}

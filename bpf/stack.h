/* SPDX-License-Identifier: GPL-2.0-or-later */
/* User stacks, with --stack. */
#ifndef RTDEBUG_STACK_H
#define RTDEBUG_STACK_H

#define STACK_TOP 4
struct stack_top {
	u64 words[STACK_TOP];
};

BPF_STACK_TRACE(stacks, 16384);
/* by stack id, with --stack: the first words on the stack at the system call */
BPF_TABLE("hash", s32, struct stack_top, stack_tops, 16384);

static __always_inline s32 user_stack_id(void *ctx, struct config *cfg)
{
	if (!cfg->stack)
		return -1;
	return stacks.get_stackid(ctx, BPF_F_USER_STACK);
}

/* At the end of a system call. The C library's wrapper makes no frame of its own, so a walk along frame pointers
 * misses who called it: his return address is one of the first words on the stack. */
static __always_inline s32 call_stack_id(void *ctx, struct config *cfg)
{
	struct pt_regs *regs = (struct pt_regs *)*(u64 *)ctx;
	s32 stack_id = user_stack_id(ctx, cfg);
	struct stack_top top = {};

	if (stack_id < 0)
		return stack_id;
	top.words[0] = RETURN_REGISTER(regs);
	if (!top.words[0])
		read_user(top.words, sizeof(top.words), (void *)REGISTER(regs, sp));
	stack_tops.insert(&stack_id, &top);
	return stack_id;
}

#endif

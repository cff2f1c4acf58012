/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One program at the end of every system call: the arguments still lie in pt_regs there, beside the result. So one
 * hit tells what two (enter and exit) would, and a failed call is known as failed.
 */

/* sys_exit(regs, ret) */
int on_sys_exit(u64 *ctx)
{
	u8 state = traced_state(bpf_get_current_pid_tgid() >> 32);
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	s64 ret = ctx[1];
	struct config *cfg;
	u32 id;

	if (state != TRACED) {
		if (state != NOT_TRACED)
			return 0;
		cfg = get_config();
		if (!cfg || !cfg->all)
			return 0;
	} else {
		cfg = get_config();
		if (!cfg)
			return 0;
	}
	id = SYSCALL_ID(regs);
	if (on_mapping_call(ctx, cfg, regs, id, ret))
		return 0;
	on_shm_call(ctx, cfg, regs, id, ret);
	if (ret == -ENOSPC)
		on_enospc(ctx, cfg, regs, id);
	return 0;
}

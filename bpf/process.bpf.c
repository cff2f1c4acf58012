/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Who is traced: kept right through fork, exec, exit and moves between cgroups. */

/* The cgroup of a process in the hierarchy of the memory controller. On v2 that controller may be off in it: then what
 * counts its memory is a cgroup above, but this is still the one it is in. */
static __always_inline u64 memcg_id_of(struct task_struct *task)
{
	struct css_set *set = KREAD(task, cgroups);
	struct config *cfg = get_config();
	struct kernfs_node *node;
	struct cgroup *cgroup;

	if (cfg && cfg->memory_hierarchy_id == V2_HIERARCHY_ID) {
		cgroup = KREAD(set, dfl_cgrp);
	} else {
		struct cgroup_subsys_state *css = KREAD(set, subsys[memory_cgrp_id]);

		cgroup = KREAD(css, cgroup);
	}
	node = KREAD(cgroup, kn);
	return KREAD(node, id);
}

static __always_inline void emit_process(u32 event, struct task_struct *task, u64 memcg_id)
{
	struct process_event *e = reserve_bookkeeping(event);
	struct task_struct *parent;
	const struct cred *cred;
	struct mm_struct *mm;

	if (!e)
		return;
	fill_header_of(&e->header, event, task);
	parent = KREAD(task, real_parent);
	cred = KREAD(task, real_cred);
	mm = KREAD(task, mm);
	e->memcg_id = memcg_id;
	e->start_ns = KREAD(task, start_boottime);
	e->total_vm_pages = KREAD(mm, total_vm);
	e->parent_pid = KREAD(parent, tgid);
	e->uid = KREAD(cred, uid.val);
	e->compat = is_compat(task);
	e->exit_code = KREAD(task, exit_code);
	e->padding = 0;
	e->cmdline[0] = 0;
	e->cmdline_bytes = 0;
	if (event == EVENT_PROCESS_EXEC) {
		u64 start = KREAD(mm, arg_start);
		u64 length = KREAD(mm, arg_end) - start;

		if (length > CMDLINE_LEN - 1)
			length = CMDLINE_LEN - 1;
		length &= CMDLINE_LEN - 1;
		if (!read_user(e->cmdline, length, (void *)start))
			e->cmdline_bytes = length;
	}
	bookkeeping.ringbuf_submit(e, 0);
}

static __always_inline u8 traced_state_for(struct task_struct *task)
{
	return is_compat(task) ? TRACED_COMPAT : TRACED;
}

/* `runc:[2:INIT]`, `crun`: the runtime's own process, which enters the container and becomes its program by exec. */
static __always_inline bool is_runtime(struct task_struct *task)
{
	char comm[COMM_LEN] = {};

	bpf_probe_read_kernel(comm, sizeof(comm), &task->comm);
	return (comm[0] == 'r' || comm[0] == 'c') && comm[1] != 0 &&
	       ((comm[1] == 'u' && comm[2] == 'n' && comm[3] == 'c') || (comm[1] == 'r' && comm[2] == 'u' && comm[3] == 'n'));
}

/* Lines of calls take the names of their process from these records; every other event brings its own. On a whole
 * host, where nobody must be followed, that is all they are for. */
static __always_inline bool needs_names(struct config *cfg)
{
	return cfg->events & (BIT(EVENT_MMAP) | BIT(EVENT_MUNMAP) | BIT(EVENT_MREMAP) | BIT(EVENT_BRK) |
			      BIT(EVENT_MADVISE) | BIT(EVENT_PROCESS_MADVISE));
}

/* sched_process_fork(parent, child) */
int on_process_fork(u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	struct config *cfg = get_config();
	u32 tgid = KREAD(child, tgid);
	u64 memcg_id;
	struct mm_struct *mm;
	u64 brk;

	if (!cfg || tgid != (u32)KREAD(child, pid))   /* a thread */
		return 0;
	memcg_id = memcg_id_of(child);
	if (cfg->all) {
		if (traced_state(KREAD(parent, tgid)) == TRACED_RUNTIME)   /* a helper of rtdebug's own */
			set_traced_state(tgid, TRACED_RUNTIME);
		if (!needs_names(cfg))
			return 0;
	} else {
		/* by the cgroup too: clone3(CLONE_INTO_CGROUP) enters one without cgroup_attach_task */
		u8 inherited = traced_state(KREAD(parent, tgid));

		if (cfg->only_pid || (!inherited && !target_cgroups.lookup(&memcg_id)))
			return 0;
		set_traced_state(tgid, inherited ? inherited : is_runtime(child) ? TRACED_RUNTIME : traced_state_for(child));
	}
	mm = KREAD(child, mm);
	brk = KREAD(mm, brk);
	brk_ends.update(&tgid, &brk);
	emit_process(EVENT_PROCESS_FORK, child, memcg_id);
	return 0;
}

/* sched_process_exec(task, old_pid, bprm) */
int on_process_exec(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct config *cfg = get_config();
	u32 tgid = KREAD(task, tgid);
	struct mm_struct *mm;
	u64 memcg_id, brk;
	u8 state;

	if (!cfg)
		return 0;
	memcg_id = memcg_id_of(task);
	if (!traced_state(tgid) && !cfg->all && (cfg->only_pid || !target_cgroups.lookup(&memcg_id)))
		return 0;
	state = traced_state_for(task);
	if (!cfg->all || state == TRACED_COMPAT)
		set_traced_state(tgid, state);
	mm = KREAD(task, mm);
	brk = KREAD(mm, brk);
	brk_ends.update(&tgid, &brk);
	emit_process(EVENT_PROCESS_EXEC, task, memcg_id);
	return 0;
}

/* sched_process_exit(task): once for each thread */
int on_process_exit(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct config *cfg = get_config();
	u32 tgid = KREAD(task, tgid);
	struct signal_struct *signal = KREAD(task, signal);

	if (!cfg || KREAD(signal, live.counter) != 0)
		return 0;
	if (!traced_state(tgid) && !cfg->all)
		return 0;
	set_traced_state(tgid, NOT_TRACED);
	brk_ends.delete(&tgid);
	if (cfg->all && !needs_names(cfg))
		return 0;
	emit_process(EVENT_PROCESS_EXIT, task, memcg_id_of(task));
	return 0;
}

/* task_rename(task, comm): before the new name is set */
int on_process_comm(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct config *cfg = get_config();
	struct process_event *e;

	if (!cfg || (!traced_state(KREAD(task, tgid)) && !(cfg->all && needs_names(cfg))))
		return 0;
	e = reserve_bookkeeping(EVENT_PROCESS_COMM);
	if (!e)
		return 0;
	__builtin_memset(e, 0, __builtin_offsetof(struct process_event, cmdline));
	fill_header_of(&e->header, EVENT_PROCESS_COMM, task);
	bpf_probe_read_kernel_str(e->header.comm, sizeof(e->header.comm), (void *)ctx[1]);
	e->cmdline[0] = 0;
	bookkeeping.ringbuf_submit(e, 0);
	return 0;
}

/* cgroup_attach_task(cgroup, path, task, threadgroup): runc exec, docker exec */
int on_cgroup_attach(u64 *ctx)
{
	struct cgroup *cgroup = (struct cgroup *)ctx[0];
	struct task_struct *task = (struct task_struct *)ctx[2];
	struct cgroup_root *root = KREAD(cgroup, root);
	struct config *cfg = get_config();
	u32 tgid = KREAD(task, tgid);
	struct kernfs_node *node;
	struct mm_struct *mm;
	u64 memcg_id, brk;

	if (!cfg || !cfg->by_cgroup || (u32)KREAD(root, hierarchy_id) != cfg->memory_hierarchy_id)
		return 0;
	node = KREAD(cgroup, kn);
	memcg_id = KREAD(node, id);
	if (!target_cgroups.lookup(&memcg_id)) {
		if (traced_state(tgid))
			set_traced_state(tgid, NOT_TRACED);
		return 0;
	}
	if (traced_state(tgid))
		return 0;
	set_traced_state(tgid, is_runtime(task) ? TRACED_RUNTIME : traced_state_for(task));
	mm = KREAD(task, mm);
	brk = KREAD(mm, brk);
	brk_ends.update(&tgid, &brk);
	emit_process(EVENT_PROCESS_ENTER, task, memcg_id);
	return 0;
}

static __always_inline void emit_cgroup(u32 event, struct cgroup *cgroup, const char *path)
{
	struct cgroup_root *root = KREAD(cgroup, root);
	struct config *cfg = get_config();
	struct cgroup_subsys_state *parent_css;
	struct kernfs_node *node;
	struct cgroup *parent;
	struct cgroup_event *e;
	u64 id, parent_id;
	u32 one = 1;

	if (!cfg || (u32)KREAD(root, hierarchy_id) != cfg->memory_hierarchy_id)
		return;
	node = KREAD(cgroup, kn);
	id = KREAD(node, id);
	parent_css = KREAD(cgroup, self.parent);
	parent = KREAD(parent_css, cgroup);
	node = KREAD(parent, kn);
	parent_id = KREAD(node, id);
	if (!cfg->all && !target_cgroups.lookup(&parent_id))
		return;
	if (!cfg->all) {
		if (event == EVENT_CGROUP_MKDIR)
			target_cgroups.update(&id, &one);
		else
			target_cgroups.delete(&id);
	}
	e = reserve_bookkeeping(event);
	if (!e)
		return;
	fill_header(&e->header, event);
	e->cgroup_id = id;
	e->parent_id = parent_id;
	e->level = KREAD(cgroup, level);
	e->padding = 0;
	bpf_probe_read_kernel_str(e->path, sizeof(e->path), path);
	bookkeeping.ringbuf_submit(e, 0);
}

/* cgroup_mkdir(cgroup, path) */
int on_cgroup_mkdir(u64 *ctx)
{
	emit_cgroup(EVENT_CGROUP_MKDIR, (struct cgroup *)ctx[0], (const char *)ctx[1]);
	return 0;
}

/* cgroup_rmdir(cgroup, path) */
int on_cgroup_rmdir(u64 *ctx)
{
	emit_cgroup(EVENT_CGROUP_RMDIR, (struct cgroup *)ctx[0], (const char *)ctx[1]);
	return 0;
}

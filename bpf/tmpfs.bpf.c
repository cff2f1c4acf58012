/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A tmpfs that is full: a call gets ENOSPC (shm_full), a page fault gets SIGBUS (sigbus, and shm_full too). */

#define ENOSPC 28
#define SIGBUS 7
#define BUS_ADRERR 2

static __always_inline void fill_tmpfs(struct tmpfs_event *e, struct file *file)
{
	struct inode *inode = KREAD(file, f_inode);
	struct dentry *dentry = KREAD(file, f_path.dentry);
	struct dentry *folder = KREAD(dentry, d_parent);
	struct super_block *sb = super_block_of(inode);

	e->inode_id = KREAD(inode, i_ino);
	e->file_length_bytes = KREAD(inode, i_size);
	e->device_id = device_of(sb);
	/* memfds and SysV segments lie in no directory: their names are what /proc/PID/maps shows */
	bpf_probe_read_kernel_str(e->name, sizeof(e->name), KREAD(dentry, d_name.name));
	read_name(e->parent, sizeof(e->parent), folder);
	e->deeper = !is_root(KREAD(folder, d_parent));
	if (is_tmpfs_file(file)) {
		struct shmem_sb_info *info = (struct shmem_sb_info *)KREAD(sb, s_fs_info);

		e->tmpfs = 1;
		e->at_shm = is_shm_path(&file->f_path);
		e->size_pages = KREAD(info, max_blocks);
		e->used_pages = KREAD(info, used_blocks.count);
		e->size_inodes = KREAD(info, max_inodes);
		e->free_inodes = tmpfs_free_inodes(info);
	}
}

static __always_inline struct tmpfs_event *reserve_tmpfs_event(u32 event)
{
	struct tmpfs_event *e = reserve_event(event);

	if (!e)
		return NULL;
	__builtin_memset(e, 0, __builtin_offsetof(struct tmpfs_event, name));
	e->name[0] = e->parent[0] = 0;
	fill_header(&e->header, event);
	return e;
}

static __always_inline void emit_shm_full(void *ctx, struct config *cfg, struct file *file, u32 id, u64 length_bytes,
					  const char *user_path, s32 directory_fd)
{
	struct tmpfs_event *e;

	if (!wants(cfg, EVENT_SHM_FULL) || !comm_matches(cfg))
		return;
	if (file && !is_tmpfs_file(file))
		return;
	e = reserve_tmpfs_event(EVENT_SHM_FULL);
	if (!e)
		return;
	e->syscall_id = id;
	e->length_bytes = length_bytes;
	e->stack_id = call_stack_id(ctx, cfg);
	if (file) {
		fill_tmpfs(e, file);
	} else {
		long length = read_user_str(e->name, sizeof(e->name), user_path);
		struct dentry *folder = length > 1 && e->name[0] != '/' ? begins_in_shm(directory_fd) : NULL;

		if (folder) {
			e->at_shm = 1;
			read_name(e->parent, sizeof(e->parent), folder);
			e->deeper = !is_root(KREAD(folder, d_parent));
		} else if (length <= 9 || !starts_with_dev_shm(e->name)) {
			events.ringbuf_discard(e, BPF_RB_NO_WAKEUP);
			return;
		}
	}
	events.ringbuf_submit(e, 0);
}

/* A call that ended with ENOSPC: which file was it about? */
static __always_inline void on_enospc(void *ctx, struct config *cfg, struct pt_regs *regs, u32 id)
{
	const char *user_path = NULL;
	struct file *file = NULL;
	s32 directory_fd = AT_FDCWD;
	u64 length_bytes = 0;
	s32 fd = -1;

	switch (id) {
	case NR_write:
	case NR_pwrite64:
		fd = ARG1(regs);
		length_bytes = ARG3(regs);
		break;
	case NR_fallocate:
	case NR_sendfile:
		fd = ARG1(regs);
		length_bytes = ARG4(regs);
		break;
	case NR_writev:
	case NR_pwritev:
	case NR_pwritev2:
		fd = ARG1(regs);
		break;
	case NR_copy_file_range:
	case NR_splice:
		fd = ARG3(regs);
		length_bytes = ARG5(regs);
		break;
	case NR_openat:
	case NR_openat2:
	case NR_mkdirat:
		directory_fd = ARG1(regs);
		user_path = (const char *)ARG2(regs);
		break;
#ifdef HAS_LEGACY_PATH_CALLS
	case NR_open:
	case NR_creat:
	case NR_mkdir:
		user_path = (const char *)ARG1(regs);
		break;
#endif
	default:
		return;
	}
	if (!user_path) {
		file = file_of(fd);
		if (!file)
			return;
	}
	emit_shm_full(ctx, cfg, file, id, length_bytes, user_path, directory_fd);
}

/* signal_generate(sig, info, task, group, result) */
int on_sigbus(u64 *ctx)
{
	struct kernel_siginfo *info = (struct kernel_siginfo *)ctx[1];
	struct task_struct *task = (struct task_struct *)ctx[2];
	struct config *cfg = get_config();
	struct vm_area_struct *vma;
	struct mm_struct *mm;
	struct tmpfs_event *e;
	struct file *file;
	bool tmpfs_full;
	u64 address;

	if ((int)ctx[0] != SIGBUS)
		return 0;
	/* only a fault's own: a SIGBUS sent by kill(2) says nothing of memory (info 0 and 1 are no addresses) */
	if (task != (struct task_struct *)bpf_get_current_task() || (u64)info <= 2)
		return 0;
	if (!cfg || (!traced_state(bpf_get_current_pid_tgid() >> 32) && !cfg->all) || !comm_matches(cfg))
		return 0;
	if (KREAD(info, si_code) <= 0)
		return 0;
	e = reserve_tmpfs_event(EVENT_SIGBUS);
	if (!e)
		return 0;
	address = (u64)KREAD(info, _sifields._sigfault._addr);
	e->address = address;
	e->signal_code = KREAD(info, si_code);
	e->stack_id = user_stack_id(ctx, cfg);
	mm = KREAD(task, mm);
	vma = mapping_at(mm, address);
	tmpfs_full = false;
	if (vma) {
		e->mapping_start = mapping_start(vma);
		e->mapping_end = mapping_end(vma);
		file = KREAD(vma, vm_file);
		if (file) {
			e->file_offset_bytes = KREAD(vma, vm_pgoff) * PAGE_SIZE + (address - e->mapping_start);
			fill_tmpfs(e, file);
			/* the whole last page is there, and without a limit it is something else: see sigbus_reason() */
			tmpfs_full = e->tmpfs && e->size_pages && e->signal_code == BUS_ADRERR &&
				     (e->file_offset_bytes & ~(PAGE_SIZE - 1ULL)) < e->file_length_bytes;
		}
	}
	if (tmpfs_full && wants(cfg, EVENT_SHM_FULL)) {
		struct tmpfs_event *full = reserve_event(EVENT_SHM_FULL);

		if (full) {
			bpf_probe_read_kernel(full, sizeof(*full), e);
			full->header.event = EVENT_SHM_FULL;
			full->by_fault = 1;
			events.ringbuf_submit(full, 0);
		}
	}
	if (wants(cfg, EVENT_SIGBUS))
		events.ringbuf_submit(e, 0);
	else
		events.ringbuf_discard(e, 0);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-or-later
/* A library to be loaded late. cc -shared -fPIC */
int library_call(void)
{
	return 23;
}

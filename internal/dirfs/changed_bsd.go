//go:build darwin || netbsd

package dirfs

import "syscall"

func changeTime(st *syscall.Stat_t) *syscall.Timespec { return &st.Ctimespec }

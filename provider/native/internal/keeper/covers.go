//go:build linux

package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Files in /proc tell programs how much memory and how many processors the machine has. The sandbox has others in their place,
// which this process writes, and writes anew while programs run.

// coversName is the directory of these files on the tmpfs of the root file system.
const coversName = "proc"

// coverTime is the time between two writes.
const coverTime = time.Second

// covers are the files in /proc that the sandbox has in place of the machine's.
type covers struct {
	memory int64 // the limit in bytes; 0 for none
	cpus   int   // the number of processors; 0 for all
}

// list returns the names of the files.
func (c covers) listNames() (names []string) {
	if c.memory > 0 {
		names = append(names, "meminfo")
	}
	if c.cpus > 0 {
		names = append(names, "cpuinfo", "stat")
	}
	return names
}

// render returns the content of a file. used is the memory that the sandbox uses, in bytes.
func (c covers) renderFile(name string, used int64) (string, error) {
	data, err := os.ReadFile("/proc/" + name)
	if err != nil {
		return "", err
	}
	switch name {
	case "meminfo":
		return renderMemory(string(data), c.memory, used), nil
	case "cpuinfo":
		return renderProcessors(string(data), c.cpus), nil
	}
	return renderTimes(string(data), c.cpus), nil
}

// renderMemory returns the machine's meminfo for a limit. The machine's cache is not the sandbox's.
func renderMemory(machine string, limit, used int64) string {
	free := max(limit-used, 0)
	values := map[string]int64{"MemTotal": limit, "MemFree": free, "MemAvailable": free}
	var text strings.Builder
	for line := range strings.Lines(machine) {
		name, rest, _ := strings.Cut(line, ":")
		switch {
		case strings.HasPrefix(name, "Huge") || strings.HasPrefix(name, "Direct") || strings.HasPrefix(name, "Vmalloc"):
			text.WriteString(line)
		case strings.HasSuffix(rest, " kB\n"):
			fmt.Fprintf(&text, "%-16s%8d kB\n", name+":", values[name]>>10)
		}
	}
	return text.String()
}

// renderProcessors returns the first n processors of the machine's cpuinfo.
func renderProcessors(machine string, n int) string {
	blocks := strings.SplitAfter(machine, "\n\n")
	var text strings.Builder
	for i, block := range blocks[:min(n, len(blocks))] {
		for line := range strings.Lines(block) {
			switch name, _, _ := strings.Cut(line, "\t"); name {
			case "processor":
				line = fmt.Sprintf("processor\t: %d\n", i)
			case "siblings", "cpu cores":
				line = fmt.Sprintf("%s\t: %d\n", name, n)
			}
			text.WriteString(line)
		}
	}
	return text.String()
}

// renderTimes returns the machine's stat for its first n processors.
func renderTimes(machine string, n int) string {
	var text strings.Builder
	for line := range strings.Lines(machine) {
		name, _, _ := strings.Cut(line, " ")
		number, err := strconv.Atoi(strings.TrimPrefix(name, "cpu"))
		if err == nil && number >= n {
			continue
		}
		if name == "intr" || name == "softirq" { // of the machine's devices
			line = name + " 0\n"
		}
		text.WriteString(line)
	}
	return text.String()
}

// makeCovers writes the files, and shows them where the sandbox's /proc will be: the script takes them from there.
func (e *engine) makeCovers() error {
	e.covers = covers{}
	if limit := int64(e.job.Spec.Resources.Memory); e.job.Caps.MemoryLimit && limit > 0 {
		e.covers.memory = limit
	}
	if e.job.Caps.CPULimit && e.job.Spec.Resources.CPUs > 0 {
		e.covers.cpus = e.cpuCount()
	}
	if len(e.covers.listNames()) == 0 {
		return nil
	}
	dir := e.root.partPath(coversName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := e.writeCovers(); err != nil {
		return err
	}
	return bind{}.mountOn(dir, filepath.Join(e.root.mergedPath(), "proc"))
}

func (e *engine) writeCovers() error {
	used, _, _ := e.sandbox.Group.Usage()
	for _, name := range e.covers.listNames() {
		text, err := e.covers.renderFile(name, used)
		if err != nil {
			return err
		}
		if err := rewriteFile(filepath.Join(e.root.partPath(coversName), name), text); err != nil {
			return err
		}
	}
	return nil
}

// rewriteFile replaces the content of a file, which readers may have open. It never is shorter than both contents meanwhile.
func rewriteFile(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o444)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// refreshCovers writes the files anew as long as programs run. It returns at once if it does so already.
func (e *engine) refreshCovers() {
	if len(e.covers.listNames()) == 0 || !e.refreshing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		for {
			select {
			case <-e.exited:
				return
			case <-time.After(coverTime):
			}
			if e.table.Running() == 0 {
				e.refreshing.Store(false)
				// A process that has been added since relies on this goroutine.
				if e.table.Running() == 0 || !e.refreshing.CompareAndSwap(false, true) {
					return
				}
			}
			if err := e.writeCovers(); err != nil {
				e.sandbox.Log.Warn("files of /proc", "err", err)
				e.refreshing.Store(false)
				return
			}
		}
	}()
}

// coverProc adds the calls that mount /proc, with the sandbox's own files over those of the kernel.
func (s *scriptBuilder) coverProc(names []string) {
	const first = lowestFD - 16 // above the descriptors that the first process gets, below those that the script uses
	for i, name := range names {
		s.Try(unix.SYS_CLOSE, 0)
		s.Do("cover "+name, unix.SYS_OPEN_TREE, cwd, s.AddText("proc/"+name), unix.OPEN_TREE_CLONE)
		s.Do("cover "+name, unix.SYS_DUP3, 0, uint64(first+i), unix.O_CLOEXEC)
	}
	s.addMount("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	for i, name := range names {
		s.Do("cover "+name, unix.SYS_MOVE_MOUNT, uint64(first+i), s.AddText(""), cwd, s.AddText("proc/"+name), unix.MOVE_MOUNT_F_EMPTY_PATH)
		s.addMount("", "proc/"+name, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
	}
}

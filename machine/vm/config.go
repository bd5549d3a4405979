package vm

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Config says what the machines of projects are made of.
type Config struct {
	// DataDir holds the disks: project-ID.img, which is read-only, and
	// project-ID-data.img. Needed.
	DataDir string
	// ConsoleLogDir is where project-ID/console.log is appended to. "" means
	// DefaultConsoleLogDir.
	ConsoleLogDir string
	// KernelPath is the kernel to boot. Needed.
	KernelPath string
	// InitrdPath is the initial file system; "" is none.
	InitrdPath string
	// BaseDiskPath is the root file system, with an engine in it, from which that of
	// each project is made. Needed.
	BaseDiskPath string
	// IdleTimeout is how long a machine stays in which no sandbox runs, such as "30m".
	// "" means DefaultIdleTimeout, "0" that it stays.
	IdleTimeout string
	CPUCount    int // of each; 0 means DefaultCPUCount
	MemoryMB    int // of each, in MiB; 0 means DefaultMemoryMB
}

// What a Config means that does not say otherwise.
const (
	DefaultIdleTimeout = 30 * time.Minute
	DefaultCPUCount    = 2
	DefaultMemoryMB    = 2048
)

// DefaultConsoleLogDir is below $XDG_STATE_HOME, which by default is ~/.local/state.
func DefaultConsoleLogDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "atoll", "vm"), nil
}

// WithDefaults returns c with what it leaves out, and how long an idle machine stays, or 0
// for ever. Kinds: ErrInvalid, for what no machine can be made of, with what to do.
func (c Config) WithDefaults() (Config, time.Duration, error) {
	c, idle, err := c.Sized()
	if err != nil {
		return Config{}, 0, err
	}
	if err := c.bootable(); err != nil {
		return Config{}, 0, err
	}
	return c, idle, nil
}

// Sized is WithDefaults for who knows himself what machines boot: it asks for no kernel
// and no disk.
func (c Config) Sized() (Config, time.Duration, error) {
	bad := func(format string, args ...any) (Config, time.Duration, error) {
		return Config{}, 0, atoll.Errorf("vm", "", atoll.ErrInvalid, format, args...)
	}
	c.CPUCount, c.MemoryMB = cmp.Or(c.CPUCount, DefaultCPUCount), cmp.Or(c.MemoryMB, DefaultMemoryMB)
	if c.ConsoleLogDir == "" {
		dir, err := DefaultConsoleLogDir()
		if err != nil {
			return bad("no directory for consoles: %w", err)
		}
		c.ConsoleLogDir = dir
	}
	idle := DefaultIdleTimeout
	if c.IdleTimeout != "" {
		var d atoll.Duration
		if err := d.UnmarshalText([]byte(c.IdleTimeout)); err != nil || d < 0 {
			return bad("idle timeout %q: write it like 30m, or 0 for never", c.IdleTimeout)
		}
		idle = time.Duration(d)
	}
	switch {
	case c.DataDir == "":
		return bad("no data directory given")
	case c.CPUCount < 1 || c.CPUCount > MaxCPUs:
		return bad("%d CPUs: must be within 1..%d, or 0 for %d", c.CPUCount, MaxCPUs, DefaultCPUCount)
	case c.MemoryMB < MinMemory>>20 || c.MemoryMB > MaxMemory>>20:
		return bad("%d MiB of memory: must be within %d..%d, or 0 for %d", c.MemoryMB, MinMemory>>20, MaxMemory>>20, DefaultMemoryMB)
	}
	return c, idle, nil
}

// bootable is an error unless there is what machines boot.
func (c Config) bootable() error {
	bad := func(format string, args ...any) error {
		return atoll.Errorf("vm", "", atoll.ErrInvalid, format, args...)
	}
	switch {
	case c.KernelPath == "":
		return bad("no kernel given")
	case c.BaseDiskPath == "":
		return bad("no base disk given: it must hold an engine")
	}
	for what, path := range map[string]string{"kernel": c.KernelPath, "initial file system": c.InitrdPath, "base disk": c.BaseDiskPath} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return bad("%s: %w", what, err)
		}
		if !info.Mode().IsRegular() || info.Size() == 0 {
			return bad("%s %s: is not a file, or empty", what, path)
		}
	}
	return nil
}

// RootDisk is the path of the disk of a project's root file system.
func (c Config) RootDisk(project string) string {
	return filepath.Join(c.DataDir, "project-"+project+".img")
}

// DataDisk is the path of the disk of what a project keeps.
func (c Config) DataDisk(project string) string {
	return filepath.Join(c.DataDir, "project-"+project+"-data.img")
}

// ConsoleLog is the path of what a project's machine prints.
func (c Config) ConsoleLog(project string) string {
	return filepath.Join(c.ConsoleLogDir, "project-"+project, "console.log")
}

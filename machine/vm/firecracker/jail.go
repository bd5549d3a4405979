package firecracker

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll"
)

// parentCgroup is where the groups of jailed machines are, in each hierarchy.
const parentCgroup = "atoll"

// supervise runs jailer, as what it is given, and stays: it is the first process of a
// PID namespace, so that all in it end with it.
const supervise = `"$@"; exit $?`

// jailed makes the root directory below Dir where jailer has it, and returns what starts
// Firecracker in it. The kernel forgets that a process is to end with its parent when
// that process changes its user, as jailer does; so a shell that does not is in between.
func (m *machine) jailed(program string, args []string) (*exec.Cmd, error) {
	j := m.d.opts.Jail
	if os.Geteuid() != 0 {
		return nil, atoll.Errorf("", "", atoll.ErrDenied, "jailer needs root: run as root, or without a jail")
	}
	jailer, err := m.d.jailer()
	if err != nil {
		return nil, err
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return nil, err
	}
	if !strings.Contains(filepath.Base(program), "firecracker") {
		return nil, atoll.Errorf("", "", atoll.ErrInvalid, "%s: jailer wants the name of the program to contain \"firecracker\"", program)
	}
	baseAt := filepath.Join(m.h.Dir, baseDir)
	m.root = filepath.Join(baseAt, filepath.Base(program), m.h.ID, "root")
	if err := os.MkdirAll(m.root, 0o711); err != nil {
		return nil, err
	}
	if err := os.Chmod(m.root, 0o700); err != nil {
		return nil, err
	}
	for name, f := range m.files() {
		if err := m.put(filepath.Join(m.root, name), f); err != nil {
			return nil, err
		}
	}
	line := []string{
		"-c", supervise, "sh", jailer, "--id", m.h.ID, "--exec-file", program,
		"--uid", strconv.Itoa(j.UID), "--gid", strconv.Itoa(j.GID), "--chroot-base-dir", baseAt,
	}
	if len(j.Cgroups) > 0 {
		version := j.CgroupVersion
		if version == 0 {
			version = 2
		}
		line = append(line, "--cgroup-version", strconv.Itoa(version), "--parent-cgroup", parentCgroup)
		for _, c := range j.Cgroups {
			line = append(line, "--cgroup", c)
		}
	}
	cmd := exec.Command("/bin/sh", append(append(line, "--"), args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{}
	inNamespace(cmd)
	return cmd, nil
}

// put makes a file of the machine's appear in the jail: the same, or a copy where that
// cannot be and nobody writes.
func (m *machine) put(at string, f file) error {
	path, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return atoll.Errorf("", "", atoll.ErrInvalid, "%s: %w", f.path, err)
	}
	err = os.Link(path, at)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, syscall.EXDEV):
		return err
	case !f.readOnly:
		return atoll.Errorf("", "", atoll.ErrInvalid, "%s: must be on the file system of %s to be in a jail there, or read-only", path, m.h.Dir)
	}
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := copyFile(src, at, 0o400); err != nil {
		return err
	}
	return os.Lchown(at, m.d.opts.Jail.UID, m.d.opts.Jail.GID)
}

func copyFile(src *os.File, to string, mode os.FileMode) error {
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}

// unjail removes the machine's cgroups, which jailer leaves.
func (m *machine) unjail() {
	if j := m.d.opts.Jail; j == nil || len(j.Cgroups) == 0 {
		return
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(pattern + parentCgroup) // the pattern is right
		for _, g := range groups {
			_ = os.Remove(filepath.Join(g, m.h.ID)) // most hierarchies have none
		}
	}
}

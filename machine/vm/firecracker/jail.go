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

// parentCgroup names the cgroup above those of jailed machines, in each hierarchy.
const parentCgroup = "atoll"

// jailScript runs its arguments, which are jailer's, and waits: the shell is the first process of a
// PID namespace, so that all processes in it end with it.
const jailScript = `"$@"; exit $?`

// jailCommand creates the root directory below Dir, at the place that jailer expects, and returns
// the command that starts Firecracker in it. Linux forgets that a process has to end with its
// parent when the process changes its user, as jailer does; so a shell that keeps its user stands
// in between.
func (m *machine) jailCommand(program string, args []string) (*exec.Cmd, error) {
	j := m.driver.opts.Jail
	if os.Geteuid() != 0 {
		return nil, atoll.Errorf("", "", atoll.ErrDenied, "jailer needs root: run as root, or without a jail")
	}
	jailer, err := m.driver.findJailer()
	if err != nil {
		return nil, err
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return nil, err
	}
	if !strings.Contains(filepath.Base(program), "firecracker") {
		return nil, atoll.Errorf("", "", atoll.ErrInvalid, "%s: rename the program: jailer needs \"firecracker\" in its name", program)
	}
	baseAt := filepath.Join(m.hardware.Dir, baseDir)
	m.root = filepath.Join(baseAt, filepath.Base(program), m.hardware.ID, "root")
	if err := os.MkdirAll(m.root, 0o711); err != nil {
		return nil, err
	}
	if err := os.Chmod(m.root, 0o700); err != nil {
		return nil, err
	}
	for name, f := range m.rootFiles() {
		if err := m.placeFile(filepath.Join(m.root, name), f); err != nil {
			return nil, err
		}
	}
	line := []string{
		"-c", jailScript, "sh", jailer, "--id", m.hardware.ID, "--exec-file", program,
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
	setNewPIDNamespace(cmd)
	return cmd, nil
}

// placeFile makes a file of the machine appear in the jail: by a hard link, or by a copy if that is
// impossible and the file is read-only.
func (m *machine) placeFile(at string, f machineFile) error {
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
		return atoll.Errorf("", "", atoll.ErrInvalid, "%s: must be on the file system of %s for a jail there, or read-only", path, m.hardware.Dir)
	}
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := copyFile(src, at, 0o400); err != nil {
		return err
	}
	return os.Lchown(at, m.driver.opts.Jail.UID, m.driver.opts.Jail.GID)
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

// removeCgroups removes the machine's cgroups, which jailer leaves behind.
func (m *machine) removeCgroups() {
	if j := m.driver.opts.Jail; j == nil || len(j.Cgroups) == 0 {
		return
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(pattern + parentCgroup) // the pattern is valid
		for _, g := range groups {
			_ = os.Remove(filepath.Join(g, m.hardware.ID)) // most hierarchies have none
		}
	}
}

package supervised

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// SubIDs are the subordinate ids of this user: ids of the machine that nobody else has, and that the programs newuidmap and newgidmap
// give to a user namespace. A nil *SubIDs stands for none.
type SubIDs struct {
	users, groups idMapper
}

// An idMapper maps this user's own id to 0, and a range to the ids from 1 on.
type idMapper struct {
	program      string
	own          int
	first, count int
}

// leastIDs is the smallest range that is used: images have users up to 65534.
const leastIDs = 65535

// FindSubIDs returns the subordinate ids of this user. If there are none, it returns nil and says why; for root it returns nil and "".
func FindSubIDs() (ids *SubIDs, reason string) {
	uid := os.Geteuid()
	if uid == 0 {
		return nil, ""
	}
	names := []string{strconv.Itoa(uid)}
	if u, err := user.LookupId(names[0]); err == nil {
		names = append(names, u.Username)
	}
	users, err1 := findMapper("newuidmap", "/etc/subuid", names, uid)
	groups, err2 := findMapper("newgidmap", "/etc/subgid", names, os.Getegid())
	if err := errors.Join(err1, err2); err != nil {
		return nil, strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return &SubIDs{users, groups}, ""
}

func findMapper(name, file string, names []string, own int) (m idMapper, err error) {
	if m.program, err = exec.LookPath(name); err != nil {
		return m, fmt.Errorf("%s is not installed", name)
	}
	if !isPrivileged(m.program) {
		return m, fmt.Errorf("%s has no rights here", m.program)
	}
	data, _ := os.ReadFile(file)
	m.own = own
	if m.first, m.count = parseSubIDs(string(data), names); m.count < leastIDs {
		return m, fmt.Errorf("%s has no %d ids for this user", file, leastIDs)
	}
	return m, nil
}

// isPrivileged reports whether a program gets the rights that its file has.
func isPrivileged(program string) bool {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Stat(program, &st) != nil || unix.Statfs(program, &fs) != nil || fs.Flags&unix.ST_NOSUID != 0 {
		return false
	}
	if denied, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || denied != 0 {
		return false
	}
	n, err := unix.Getxattr(program, "security.capability", nil)
	return st.Mode&unix.S_ISUID != 0 && st.Uid == 0 || err == nil && n > 0
}

// parseSubIDs returns the largest range in the text of /etc/subuid that belongs to one of the names.
func parseSubIDs(text string, names []string) (first, count int) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue
		}
		start, err1 := strconv.Atoi(fields[1])
		size, err2 := strconv.Atoi(fields[2])
		for _, name := range names {
			if err1 == nil && err2 == nil && fields[0] == name && start > 0 && size > count {
				first, count = start, size
			}
		}
	}
	return first, count
}

// mapProcess gives the ids to the user namespace of a process that supervisorAttr described, and which waits for them.
func (s *SubIDs) mapProcess(pid int) error {
	if s == nil {
		return nil
	}
	var groupsErr error
	var work sync.WaitGroup
	work.Go(func() { groupsErr = s.groups.mapProcess(pid) })
	err := s.users.mapProcess(pid)
	work.Wait()
	return errors.Join(err, groupsErr)
}

func (m idMapper) mapProcess(pid int) error {
	cmd := exec.Command(m.program, strconv.Itoa(pid), "0", strconv.Itoa(m.own), "1", "1", strconv.Itoa(m.first), strconv.Itoa(min(m.count, 1<<16)))
	cmd.Env = []string{}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", m.program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// ownerTries is the most calls of remove by retryAsOwner. Each finds one tree that it may not remove: a volume, a sandbox's directory.
const ownerTries = 4

// retryAsOwner calls remove. If that may not remove files of subordinate ids from the trash, a process that has these ids empties the
// trash, and retryAsOwner calls remove again, which may find nothing left.
func (p *Provider) retryAsOwner(remove func() error) error {
	for try := 1; ; try++ {
		err := remove()
		if try > 1 && (errors.Is(err, fs.ErrNotExist) || atoll.KindOf(err) == atoll.ErrNotExist) {
			return nil
		}
		if p.opts.SubIDs == nil || !errors.Is(err, fs.ErrPermission) || try == ownerTries {
			return err
		}
		if helperErr := p.emptyTrashAsOwner(); helperErr != nil {
			return errors.Join(err, helperErr)
		}
	}
}

// emptyTrashAsOwner empties the trash in a process that is started like a supervisor.
func (p *Provider) emptyTrashAsOwner() error {
	helper, err := p.opts.Backend.Helper()
	if err != nil {
		return err
	}
	cmd := exec.Command(helper)
	cmd.Args = []string{p.opts.Supervisor, supervisor.EmptyTrash, string(p.dir)}
	cmd.Env = []string{}
	if out, err := runWithIDs(cmd, p.opts.SubIDs); err != nil {
		return fmt.Errorf("remove files of subordinate ids: %w: %s", err, out)
	}
	return nil
}

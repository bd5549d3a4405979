//go:build linux

package keeper

import (
	"fmt"
	"strconv"
	"strings"
)

// credentials are whom a program runs as.
type credentials struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// idBits is the size of the ids that there are: the highest one of 32 bits stands
// for none, and docker has none above these either.
const idBits = 31

// parseUser resolves a user as docker does: "", a name, "UID", "name:group" or
// "UID:GID", against the sandbox's own passwd and group files. A number needs
// no entry; a name does.
func parseUser(user string, passwd, group []byte) (credentials, error) {
	c := credentials{home: "/"}
	if user == "" {
		user = "0"
	}
	name, groupName, hasGroup := strings.Cut(user, ":")
	uid, notNumber := strconv.ParseUint(name, 10, idBits)
	c.uid = uint32(uid)
	known := false
	eachLine(passwd, 7, func(f []string) bool {
		if f[0] != name && (notNumber != nil || f[2] != name) {
			return true
		}
		id, err1 := strconv.ParseUint(f[2], 10, idBits)
		gid, err2 := strconv.ParseUint(f[3], 10, idBits)
		if err1 != nil || err2 != nil {
			return true
		}
		name, known = f[0], true
		c.uid, c.gid, c.home = uint32(id), uint32(gid), f[5]
		return false
	})
	if !known && notNumber != nil {
		return c, fmt.Errorf("user %q is not in the sandbox's /etc/passwd: use a name from there, UID or UID:GID", name)
	}
	if c.uid == 0 && !known {
		c.home = "/root"
	}
	if hasGroup {
		return c, c.setGroup(groupName, group)
	}
	if known {
		eachLine(group, 4, func(f []string) bool {
			gid, err := strconv.ParseUint(f[2], 10, idBits)
			for _, member := range strings.Split(f[3], ",") {
				if err == nil && member == name && uint32(gid) != c.gid {
					c.groups = append(c.groups, uint32(gid))
				}
			}
			return true
		})
	}
	return c, nil
}

func (c *credentials) setGroup(name string, group []byte) error {
	gid, err := strconv.ParseUint(name, 10, idBits)
	c.gid = uint32(gid)
	if err == nil {
		return nil
	}
	found := false
	eachLine(group, 3, func(f []string) bool {
		gid, err := strconv.ParseUint(f[2], 10, idBits)
		if f[0] != name || err != nil {
			return true
		}
		c.gid, found = uint32(gid), true
		return false
	})
	if !found {
		return fmt.Errorf("group %q is not in the sandbox's /etc/group: use a name from there or a GID", name)
	}
	return nil
}

// eachLine calls fn with the fields of each line that has at least n of them,
// until fn returns false.
func eachLine(data []byte, n int, fn func(fields []string) bool) {
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
		if len(f) >= n && !fn(f) {
			return
		}
	}
}

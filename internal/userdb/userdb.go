// Package userdb looks up users and groups in the account files of another root file system.
package userdb

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// A User is the identity that a program runs with.
type User struct {
	UID, GID uint32
	Groups   []uint32 // besides GID
	Home     string
}

// idBits is the size of valid ids: the highest id of 32 bits means "none", and docker,
// too, refuses ids above 31 bits.
const idBits = 31

// Root returns the user that "", "root", "0" and "0:0" mean without account files.
func Root() User { return User{Home: "/root"} }

// IsRoot reports whether user means root with only its own group.
func IsRoot(user string) bool {
	return user == "" || user == "root" || user == "0" || user == "0:0"
}

// Find resolves a user as docker does: "", a name, "UID", "name:group" or
// "UID:GID", against the sandbox's own passwd and group files. A number needs
// no entry; a name does.
func Find(user string, passwd, group []byte) (User, error) {
	u := User{Home: "/"}
	if user == "" {
		user = "0"
	}
	name, groupName, hasGroup := strings.Cut(user, ":")
	uid, notNumber := strconv.ParseUint(name, 10, idBits)
	u.UID = uint32(uid)
	known := false
	for f := range Entries(passwd, 7) {
		if f[0] != name && (notNumber != nil || f[2] != name) {
			continue
		}
		id, err1 := strconv.ParseUint(f[2], 10, idBits)
		gid, err2 := strconv.ParseUint(f[3], 10, idBits)
		if err1 == nil && err2 == nil {
			name, known = f[0], true
			u.UID, u.GID, u.Home = uint32(id), uint32(gid), f[5]
			break
		}
	}
	if !known && notNumber != nil {
		return u, fmt.Errorf("user %q is not in the sandbox's /etc/passwd: use a name from there, UID or UID:GID", name)
	}
	if u.UID == 0 && !known {
		u.Home = "/root"
	}
	if hasGroup {
		return u, u.setGroup(groupName, group)
	}
	if known {
		for f := range Entries(group, 4) {
			gid, err := strconv.ParseUint(f[2], 10, idBits)
			for _, member := range strings.Split(f[3], ",") {
				if err == nil && member == name && uint32(gid) != u.GID {
					u.Groups = append(u.Groups, uint32(gid))
				}
			}
		}
	}
	return u, nil
}

func (u *User) setGroup(name string, group []byte) error {
	gid, err := strconv.ParseUint(name, 10, idBits)
	u.GID = uint32(gid)
	if err == nil {
		return nil
	}
	for f := range Entries(group, 3) {
		if gid, err := strconv.ParseUint(f[2], 10, idBits); f[0] == name && err == nil {
			u.GID = uint32(gid)
			return nil
		}
	}
	return fmt.Errorf("group %q is not in the sandbox's /etc/group: use a name from there or a GID", name)
}

// Entries yields the fields of each line of an account file that has at least n
// fields.
func Entries(data []byte, n int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(data)) {
			f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
			if len(f) >= n && !yield(f) {
				return
			}
		}
	}
}

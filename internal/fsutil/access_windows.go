package fsutil

import (
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/seed46cd37a8/atoll"
)

const deleteChild = 0x40 // FILE_DELETE_CHILD

// What somebody may do who can replace what others have in a directory, change what is in a
// directory or a file, and read a file.
const (
	MayReplace = deleteChild | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_ALL
	MayChange  = MayReplace | windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.DELETE | windows.GENERIC_WRITE
	MayRead    = MayReplace | windows.FILE_READ_DATA | windows.GENERIC_READ
)

// ownAlone reports, as an error, who besides this user has a permission in denied.
func ownAlone(op, path string, _ fs.FileInfo, denied fs.FileMode) error {
	rights := windows.ACCESS_MASK(MayChange)
	if denied&0o044 != 0 {
		rights |= MayRead
	}
	if why := Allowed(path, rights, true); why != "" {
		return atoll.Errorf(op, path, atoll.ErrDenied, "it %s: leave it to your user alone (icacls)", why)
	}
	return nil
}

// Allowed says who else has one of the rights to what is at path, or, if that matters,
// owns it; "" if nobody does.
func Allowed(path string, rights windows.ACCESS_MASK, owner bool) string {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Sprintf("does not tell who can write to it (%v)", err)
	}
	who, _, err := sd.Owner()
	if owner && (err != nil || !trusted(who)) {
		return "belongs to user " + who.String()
	}
	list, _, err := sd.DACL()
	if err != nil || list == nil {
		return "is open to everyone"
	}
	for i := range uint32(list.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &ace); err != nil {
			return fmt.Sprintf("does not tell who can write to it (%v)", err)
		}
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || ace.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 || ace.Mask&rights == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart)); !trusted(sid) {
			return "is open to " + sid.String()
		}
	}
	return ""
}

// installer is the system's own, which owns the root of its drive.
const installer = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// trusted reports whether it is this user, or one who can do as he likes anyhow.
func trusted(who *windows.SID) bool {
	if me, err := windows.GetCurrentProcessToken().GetTokenUser(); err == nil && who.Equals(me.User.Sid) {
		return true
	}
	return who.IsWellKnown(windows.WinLocalSystemSid) || who.IsWellKnown(windows.WinBuiltinAdministratorsSid) || who.String() == installer
}

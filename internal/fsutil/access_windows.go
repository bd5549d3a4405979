package fsutil

import (
	"fmt"
	"io/fs"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/seed46cd37a8/atoll"
)

const deleteChild = 0x40 // FILE_DELETE_CHILD

// The rights that allow a user to replace files of others in a directory, to change a
// directory or a file, and to read a file.
const (
	MayReplace = deleteChild | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_ALL
	MayChange  = MayReplace | windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.DELETE | windows.GENERIC_WRITE
	MayRead    = MayReplace | windows.FILE_READ_DATA | windows.GENERIC_READ
)

// checkAccess returns an error that names a user besides this one who has a permission in
// denied.
func checkAccess(op, path string, _ fs.FileInfo, denied fs.FileMode) error {
	rights := windows.ACCESS_MASK(MayChange)
	if denied&0o044 != 0 {
		rights |= MayRead
	}
	if why := Allowed(path, rights, true); why != "" {
		return atoll.Errorf(op, path, atoll.ErrDenied, "it %s: remove the access of other users (icacls)", why)
	}
	return nil
}

// Allowed returns a phrase such as "is open to SID" that names another user who has one of
// the rights to the file at path or, if owner is set, owns it; "" if there is none.
func Allowed(path string, rights windows.ACCESS_MASK, owner bool) string {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Sprintf("has permissions that cannot be read (%v)", err)
	}
	who, _, err := sd.Owner()
	if owner && (err != nil || !isTrusted(who)) {
		return "belongs to user " + who.String()
	}
	list, _, err := sd.DACL()
	if err != nil || list == nil {
		return "is open to everyone"
	}
	for i := range uint32(list.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(list, i, &ace); err != nil {
			return fmt.Sprintf("has permissions that cannot be read (%v)", err)
		}
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || ace.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 || ace.Mask&rights == 0 {
			continue
		}
		if sid := (*windows.SID)(unsafe.Pointer(&ace.SidStart)); !isTrusted(sid) {
			return "is open to " + sid.String()
		}
	}
	return ""
}

// trustedInstaller is the SID of Windows's installer, which owns the root of the system drive.
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// isTrusted reports whether who is this user, or an account that can bypass permissions.
func isTrusted(who *windows.SID) bool {
	if me, err := windows.GetCurrentProcessToken().GetTokenUser(); err == nil && who.Equals(me.User.Sid) {
		return true
	}
	return who.IsWellKnown(windows.WinLocalSystemSid) || who.IsWellKnown(windows.WinBuiltinAdministratorsSid) || who.String() == trustedInstaller
}

//go:build linux

package hostroot

import (
	"errors"
	"io/fs"
	"path"
	"path/filepath"
)

// pamServices lists the services of PAM that have a file of their own; "other" is for all the rest.
var pamServices = []string{"other", "runuser", "runuser-l", "su", "su-l"}

// pamService lets root become any user, as su and runuser do, and nobody else: no account has a password.
const pamService = `auth     sufficient pam_rootok.so
auth     required   pam_deny.so
account  required   pam_permit.so
password required   pam_deny.so
session  required   pam_permit.so
`

// makePAM writes the configuration of PAM, without which su and runuser end at once. That of the machine is for its own
// accounts.
func (h *hostView) makePAM() error {
	errs := []error{h.root.MkdirAll("etc/pam.d", 0o755)}
	for _, name := range pamServices {
		errs = append(errs, h.root.WriteFile(path.Join("etc/pam.d", name), []byte(pamService), 0o644))
	}
	return errors.Join(errs...)
}

// packageManagers lists programs that need the machine's package database, which sandboxes do not see.
var packageManagers = []string{"apk", "apt", "apt-get", "aptitude", "dnf", "microdnf", "pacman", "yum", "zypper"}

// noPackages takes their place. The code is apt-get's for errors.
const noPackages = `#!/bin/sh
echo "${0##*/}: packages of a distribution cannot be installed in a sandbox that shows the programs of its machine:" \
  "create the sandbox from an image, as by atoll run --image debian" >&2
exit 100
`

// coverPackageManagers replaces the package managers of the machine by a program that says what to do instead.
func (h *hostView) coverPackageManagers() error {
	const script = "proc/.no-packages" // hidden below the mount of /proc
	if err := h.root.WriteFile(script, []byte(noPackages), 0o755); err != nil {
		return err
	}
	covered := map[string]bool{}
	for _, name := range packageManagers {
		for _, dir := range []string{"/usr/bin", "/usr/sbin", "/sbin"} {
			real, err := filepath.EvalSymlinks(filepath.Join(dir, name))
			if err != nil || covered[real] {
				continue
			}
			info, err := h.root.Lstat(real[1:])
			if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
				continue // its target is not shown
			}
			if err == nil {
				own := hostView{} // without a mapping: the program belongs to the caller
				err = own.bindReadOnly(filepath.Join(h.root.Name(), script), filepath.Join(h.root.Name(), real), false)
			}
			if err != nil {
				return err
			}
			covered[real] = true
		}
	}
	return nil
}

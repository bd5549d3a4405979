package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
)

// SSH configures the SSH server of serve, which is off unless Listen is set.
type SSH struct {
	Listen         string `yaml:"listen" doc:"address on which serve listens for SSH, like 127.0.0.1:2222; empty turns it off"`
	AuthorizedKeys string `yaml:"authorized_keys" form:"path" doc:"file of public keys that may log in by SSH, in the format of OpenSSH, like ~/.ssh/authorized_keys"`
	HostKey        string `yaml:"host_key" form:"path" doc:"file of the server's SSH key, created if missing; empty means ssh_host_ed25519_key in state_dir"`
}

// checkValues returns an error if serve could not listen, or nobody could log in.
func (s SSH) checkValues() error {
	if _, port, err := net.SplitHostPort(s.Listen); err != nil || port == "" {
		return fmt.Errorf("%q: write it like 127.0.0.1:2222", s.Listen)
	}
	if s.AuthorizedKeys == "" {
		return errors.New("no key may log in: set ssh.authorized_keys to a file of public keys, like ~/.ssh/authorized_keys")
	}
	return nil
}

// SSHHostKey returns the path of the server's SSH key.
func (c *Config) SSHHostKey() string {
	return cmp.Or(c.SSH.HostKey, filepath.Join(c.StateDir, "ssh_host_ed25519_key"))
}

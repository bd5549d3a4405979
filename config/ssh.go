package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
)

// SSH is how serve is reached by SSH. It is not, unless Listen is set.
type SSH struct {
	Listen         string `yaml:"listen" doc:"where serve listens for SSH, like 127.0.0.1:2222; empty for not at all"`
	AuthorizedKeys string `yaml:"authorized_keys" form:"path" doc:"file of the keys that may log in by SSH, as OpenSSH writes it, like ~/.ssh/authorized_keys"`
	HostKey        string `yaml:"host_key" form:"path" doc:"file of the server's SSH key, made if missing; empty for ssh_host_ed25519_key in state_dir"`
}

// check finds what would keep serve from listening.
func (s SSH) check() error {
	if _, port, err := net.SplitHostPort(s.Listen); err != nil || port == "" {
		return fmt.Errorf("%q: write it like 127.0.0.1:2222", s.Listen)
	}
	if s.AuthorizedKeys == "" {
		return errors.New("nobody could log in: set ssh.authorized_keys to a file of public keys, like ~/.ssh/authorized_keys")
	}
	return nil
}

// SSHHostKey is the path of the server's SSH key.
func (c *Config) SSHHostKey() string {
	return cmp.Or(c.SSH.HostKey, filepath.Join(c.StateDir, "ssh_host_ed25519_key"))
}

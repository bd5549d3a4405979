package config

import (
	"strings"
	"testing"
)

func TestSSH(t *testing.T) {
	cfg, err := load(t, "state_dir: /state\n", nil, nil)
	if err != nil || cfg.SSH.Listen != "" || cfg.SSHHostKey() != "/state/ssh_host_ed25519_key" {
		t.Errorf("by default: %+v, %q, %v", cfg.SSH, cfg.SSHHostKey(), err)
	}
	cfg, err = load(t, "ssh:\n  listen: :2222\n  authorized_keys: /keys\n  host_key: /host\n", nil, nil)
	if err != nil || cfg.SSH != (SSH{Listen: ":2222", AuthorizedKeys: "/keys", HostKey: "/host"}) || cfg.SSHHostKey() != "/host" {
		t.Errorf("from the file: %+v, %v", cfg.SSH, err)
	}
	cfg, err = load(t, "", []string{"ATOLL_SSH_LISTEN=[::1]:22"}, map[string]string{"ssh.authorized_keys": "~/keys"})
	if err != nil || cfg.SSH.Listen != "[::1]:22" || !strings.HasSuffix(cfg.SSH.AuthorizedKeys, "/keys") {
		t.Errorf("from environment and flags: %+v, %v", cfg.SSH, err)
	}
	for text, want := range map[string]string{
		"ssh:\n  listen: 2222\n  authorized_keys: /keys\n": `"2222": write it like 127.0.0.1:2222`,
		"ssh:\n  listen: :2222\n":                          "no key may log in: set ssh.authorized_keys",
		"ssh:\n  listen: :2222\n  authorized_keys: keys\n": "must be an absolute path",
	} {
		if _, err := load(t, text, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

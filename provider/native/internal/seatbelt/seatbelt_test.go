package seatbelt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	home  = "/Users/me"
	state = home + "/.local/state/atoll/native"
	work  = state + "/volumes/default/data-1"
	temp  = state + "/tmp/1"
	other = state + "/volumes/default/data-2" // of another sandbox
)

// policy is the policy of a sandbox without a network. Its configuration shows a directory of the user, and one with everything.
func policy() Policy {
	return Policy{
		Write:  []string{work, temp},
		Read:   []string{home + "/src", "/Users/shared"},
		Hidden: []string{state, home + "/.ssh", "/Users/shared/Keychains"},
	}
}

func render(t *testing.T, p Policy) string {
	t.Helper()
	text, err := p.Profile()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func rulesOf(t *testing.T, p Policy) []rule {
	t.Helper()
	return parseRules(t, render(t, p))
}

// Everything that no rule allows is denied.
func TestDenyIsTheDefault(t *testing.T) {
	text := render(t, policy())
	if !strings.HasPrefix(text, "(version 1)\n(deny default)\n") {
		t.Errorf("the profile begins with %.40q", text)
	}
	for _, r := range parseRules(t, text)[2:] {
		if r.action == "allow" && len(r.filters) == 0 && slices.ContainsFunc(r.operations, func(op string) bool {
			return !slices.Contains([]string{"process-fork", "mach-host*", "pseudo-tty"}, op)
		}) {
			t.Errorf("%q is allowed without a filter", r.operations)
		}
	}
}

// operations are the names that public profiles for macOS have. The kernel refuses a profile with any other.
var operations = []string{
	"default", "file-ioctl", "file-map-executable", "file-read*", "file-read-metadata", "file-test-existence", "file-write*", "file-write-data",
	"file-write-flags", "file-write-setugid", "file-write-unlink", "ipc-posix-sem", "ipc-posix-shm-read*", "mach-host*", "mach-lookup",
	"network-bind", "network-inbound", "network-outbound", "process-exec*", "process-fork", "process-info*", "pseudo-tty", "signal", "sysctl-read",
	"system-socket",
}

func TestOperationsAreKnown(t *testing.T) {
	p := policy()
	p.Network = true
	text := render(t, p)
	for _, r := range parseRules(t, text)[1:] {
		if r.action != "allow" && r.action != "deny" || len(r.operations) == 0 {
			t.Errorf("%+v is no rule", r)
		}
		for _, op := range r.operations {
			if !slices.Contains(operations, op) {
				t.Errorf("unknown operation %s", op)
			}
		}
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' }); i >= 0 {
		t.Errorf("the text is not ASCII at %.20q", text[i:])
	}
}

// Programs can read, change and execute these files, and no others.
func TestFiles(t *testing.T) {
	rules := rulesOf(t, policy())
	const no, meta, read, write = "", "metadata", "read", "write"
	for path, want := range map[string]string{
		work:                        write,
		work + "/a/b":               write,
		temp + "/x":                 write,
		work + "2/x":                no,
		other:                       no,
		other + "/x":                no,
		state + "/sandboxes/1.json": no,
		state:                       meta, // the way to the work directory
		home:                        meta,
		"/Users":                    meta,

		home + "/.zshrc":                             no,
		home + "/.ssh/id_ed25519":                    no,
		home + "/Library/Keychains/x":                no,
		home + "/Documents":                          no,
		"/Users/she/file":                            no,
		"/Users/Shared/file":                         no,
		"/Library/Keychains/System.keychain":         no,
		"/private/etc/master.passwd":                 no,
		"/private/etc/sudoers":                       no,
		"/private/tmp/x":                             no,
		"/private/tmp/com.apple.launchd.x/Listeners": no, // of ssh-agent
		"/private/var/folders/aa/bb/T/x":             no,
		"/private/var/run/docker.sock":               no,
		"/private/var/root/x":                        no,
		"/opt/homebrew/var/postgresql/x":             no,
		"/usr/local/var/mysql/x":                     no,
		"/System/Volumes/Data/Users/me/x":            no,
		"/Volumes/Disk/x":                            no,
		"/Applications/Mail.app":                     no,
		"/dev/disk0":                                 no,
		"/dev/ttys001":                               meta, // a terminal of the user

		"/":                      read,
		"/bin/sh":                read,
		"/usr/bin/git":           read,
		"/usr/local/bin/x":       read,
		"/opt/homebrew/bin/x":    read,
		"/System/Library/dyld/x": read,
		"/Library/Developer/CommandLineTools/usr/bin/git": read,
		"/private/etc/passwd":                             read,
		"/private/etc/ssl/cert.pem":                       read,
		"/private/var/db/timezone/x":                      read,
		home + "/src/main.go":                             read, // configured
		"/Users/shared/x":                                 read, // configured
		"/Users/shared/Keychains/x":                       no,   // configured, and hidden
		"/etc":                                            meta,
		"/tmp":                                            meta,
		"/private/var":                                    meta,
		"/opt":                                            meta,
		"/dev/random":                                     read,
		"/dev/null":                                       "device",
		"/dev/tty":                                        "device",
		"/dev/fd/3":                                       "device",
		"own:/dev/ttys005":                                write,
	} {
		got := no
		for _, op := range []struct{ name, can string }{
			{"file-read-metadata", meta}, {"file-read-data", read}, {"file-write-data", "device"}, {"file-write-create", write},
		} {
			if allows(rules, op.name, path) {
				got = op.can
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		if runs := allows(rules, "process-exec", path); runs && (got == no || got == meta) {
			t.Errorf("%s can be executed and not read", path)
		}
	}
	for path, want := range map[string]bool{"/bin/sh": true, work + "/a.out": true, "/private/tmp/a.out": false, "/dev/null": false, "/Applications/Mail.app/Contents/MacOS/Mail": false} {
		if got := allows(rules, "process-exec", path); got != want {
			t.Errorf("exec %s: %v, want %v", path, got, want)
		}
	}
}

// Programs neither replace their directories nor leave files there that outlive them or give rights away, and link nothing into them.
func TestWritesHaveLimits(t *testing.T) {
	rules := rulesOf(t, policy())
	for _, tt := range []struct {
		operation, path string
		want            bool
	}{
		{"file-write-unlink", work + "/x", true},
		{"file-write-unlink", work, false},
		{"file-write-unlink", temp, false},
		{"file-write-mode", work + "/x", true},
		{"file-write-setugid", work + "/x", false},
		{"file-write-flags", work + "/x", false},
		{"file-link", work + "/x", false},
		{"file-clone", work + "/x", false},
		{"file-link", home + "/.ssh/id_ed25519", false},
	} {
		if got := allows(rules, tt.operation, tt.path); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.operation, tt.path, got, tt.want)
		}
	}
}

// Programs see and signal those behind the same wall only.
func TestProcesses(t *testing.T) {
	rules := rulesOf(t, policy())
	for _, tt := range []struct {
		operation, target string
		want              bool
	}{
		{"signal", "same-sandbox", true},
		{"signal", "others", false},
		{"process-info-pidinfo", "self", true},
		{"process-info-pidinfo", "same-sandbox", true},
		{"process-info-pidinfo", "others", false},
	} {
		if got := allows(rules, tt.operation, tt.target); got != tt.want {
			t.Errorf("%s of %s: %v, want %v", tt.operation, tt.target, got, tt.want)
		}
	}
	for name, want := range map[string]bool{
		"hw.ncpu": true, "kern.osrelease": true, "machdep.cpu.brand_string": true,
		"kern.procargs2": false, "kern.proc.all": false, "kern.bootargs": false, "net.inet.tcp.pcblist": false,
	} {
		if got := allows(rules, "sysctl-read", name); got != want {
			t.Errorf("sysctl %s: %v, want %v", name, got, want)
		}
	}
	if allows(rules, "sysctl-write", "kern.hostname") {
		t.Error("programs change settings of the kernel")
	}
}

// Services that know secrets or act outside are out of reach, with a network too.
func TestServices(t *testing.T) {
	for _, network := range []bool{false, true} {
		p := policy()
		p.Network = network
		rules := rulesOf(t, p)
		for name, want := range map[string]bool{
			"com.apple.system.opendirectoryd.libinfo": true,
			"com.apple.logd":                         true,
			"com.apple.trustd.agent":                 network,
			"com.apple.SystemConfiguration.configd":  network,
			"com.apple.SecurityServer":               false,
			"com.apple.securityd.xpc":                false,
			"com.apple.cfprefsd.agent":               false,
			"com.apple.coreservices.launchservicesd": false,
			"com.apple.pasteboard.1":                 false,
			"com.apple.windowserver.active":          false,
			"com.apple.tccd":                         false,
		} {
			if got := allows(rules, "mach-lookup", name); got != want {
				t.Errorf("network %v, %s: %v, want %v", network, name, got, want)
			}
		}
		for _, op := range []string{"appleevent-send", "lsopen", "mach-register", "iokit-open", "user-preference-read", "job-creation", "mach-priv-task-port", "system-privilege"} {
			if allows(rules, op, "") {
				t.Errorf("network %v: %s is allowed", network, op)
			}
		}
	}
}

// Without a network there is none. With one, sockets of services stay closed.
func TestNetwork(t *testing.T) {
	for _, network := range []bool{false, true} {
		p := policy()
		p.Network = network
		rules := rulesOf(t, p)
		for _, tt := range []struct {
			operation, value string
			want             bool
		}{
			{"network-outbound", "ip:127.0.0.1:80", network},
			{"network-outbound", "ip:192.0.2.1:443", network},
			{"network-inbound", "ip:127.0.0.1:80", network},
			{"network-bind", "ip:127.0.0.1:80", network},
			{"network-outbound", "/private/var/run/mDNSResponder", network},
			{"network-outbound", work + "/socket", true},
			{"network-bind", work + "/socket", true},
			{"network-outbound", other + "/socket", false},
			{"network-outbound", home + "/src/socket", false},
			{"network-outbound", "/private/var/run/docker.sock", false},
			{"network-outbound", "/private/tmp/com.apple.launchd.x/Listeners", false},
			{"network-outbound", "/private/var/run/syslog", false},
			{"system-socket", "AF_UNIX", true},
			{"system-socket", "AF_SYSTEM", false},
			{"system-socket", "AF_ROUTE", false},
		} {
			if got := allows(rules, tt.operation, tt.value); got != tt.want {
				t.Errorf("network %v, %s %s: %v, want %v", network, tt.operation, tt.value, got, tt.want)
			}
		}
	}
}

// A path cannot end its string and add rules.
func TestQuoting(t *testing.T) {
	const evil = `/work/a" (allow default) "\` + "`;#(b)"
	rules := rulesOf(t, Policy{Write: []string{evil}})
	if !allows(rules, "file-write-create", evil+"/x") || allows(rules, "file-read-data", home) {
		t.Errorf("the path %s is not quoted", evil)
	}
	if !allows(rulesOf(t, Policy{Write: []string{"/Users/jürgen/x"}}), "file-write-create", "/Users/jürgen/x/y") {
		t.Error("a path in UTF-8 does not match")
	}
	for _, path := range []string{"", "/", "relative", "/a/../b", "/a/", "/a\nb", "/a\x00b", "/a\tb", "/a\x7fb", "/a\xffb"} {
		for _, p := range []Policy{{Write: []string{path}}, {Read: []string{path}}, {Hidden: []string{path}}} {
			if text, err := p.Profile(); err == nil {
				t.Errorf("the path %q is accepted:\n%s", path, text)
			}
		}
	}
}

// The kernel knows paths without symbolic links, also the parts of them that do not exist yet.
func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "real/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/link/sub":     dir + "/real/sub",
		dir + "/link/new/x":   dir + "/real/new/x",
		dir + "/link/../real": dir + "/real",
		"/no/such/file":       "/no/such/file",
		"/":                   "/",
	} {
		if got, err := Resolve(path); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
}

// Check reports walls that do not work, and walls with holes.
func TestCheck(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name, works, want string // works: the programs that succeed
	}{
		{"a wall", "true touch-work", ""},
		{"no wall", "true touch-work cat touch nc", "programs read files outside"},
		{"writes", "true touch-work touch", "programs write files outside"},
		{"network", "true touch-work nc", "reach ports"},
		{"does not start", "", "no program starts behind the wall: failed"},
		{"no work", "true", "cannot write in their own directory: failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(t.Context(), t.TempDir(), func(_ context.Context, profile string, args ...string) error {
				if !strings.Contains(profile, "(deny default)") {
					t.Errorf("profile %q", profile)
				}
				name := filepath.Base(args[0])
				if name == "touch" && strings.Contains(args[1], "/work/") {
					name = "touch-work"
				}
				if slices.Contains(strings.Fields(tt.works), name) {
					return nil
				}
				return failed
			})
			if got := errorText(err); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

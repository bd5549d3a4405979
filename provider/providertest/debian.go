package providertest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// One promise tests all programs, because a sandbox of a whole distribution takes long to create.
var debianPromises = []promise{
	{"programs of a distribution work in a sandbox as they do elsewhere", []need{needImages, needDebian}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Image: h.cfg.debian(t)})
		for _, tt := range []struct {
			name, stdin string
			args        []string
			code        int
			out, err    string // parts of stdout and stderr
		}{
			{"python exits with the code of a script", "import sys; sys.exit(3)", []string{"python3", "-"}, 3, "", ""},
			{"python prints a traceback", "1 / 0", []string{"python3", "-"}, 1, "", "ZeroDivisionError"},
			{"python has processes, threads and locks", pythonWorks, []string{"python3", "-"}, 0, "workers 285 database 2 secure True", ""},
			{"bash is not interactive without a terminal", "", []string{"bash", "-lc", `[[ $- != *i* && ! -t 1 ]] && echo "${BASH_VERSINFO[0]}"`}, 0, "5", ""},
			{"the image has its users", "", []string{"sh", "-c", "getent passwd www-data"}, 0, "www-data:x:33:33", ""},
			{"locales and time zones work", "", []string{"sh", "-c", "TZ=UTC-5 LC_ALL=C.UTF-8 date -d @0 +%H; printf 'ä' | LC_ALL=C.UTF-8 wc -m"}, 0, "05\n1", ""},
			{"dpkg builds and installs a package", "", []string{"sh", "-ec", packageWorks}, 0, "installed 1.0", ""},
		} {
			t.Run(tt.name, func(t *testing.T) {
				res := h.runCommand(t, sb, &atoll.Command{Args: tt.args, Stdin: strings.NewReader(tt.stdin)})
				if res.Exit.Code != tt.code || !strings.Contains(string(res.Stdout), tt.out) || !strings.Contains(string(res.Stderr), tt.err) {
					t.Errorf("exit %+v, want code %d; stdout %q, want %q; stderr %q, want %q", res.Exit, tt.code, res.Stdout, tt.out, res.Stderr, tt.err)
				}
			})
		}
		caps := h.p.Info().Caps
		if caps.Users {
			t.Run("a command runs as a named user", func(t *testing.T) {
				for _, home := range []string{"/var/www", "/elsewhere"} {
					cmd := &atoll.Command{Args: []string{"sh", "-c", "id -un; id -gn; echo $HOME"}, User: "www-data"}
					if home != "/var/www" {
						cmd.Env = []string{"HOME=" + home}
					}
					if got, want := h.runForOutput(t, sb, cmd), "www-data\nwww-data\n"+home; got != want {
						t.Errorf("www-data is %q, want %q", got, want)
					}
				}
			})
		}
		if caps.TTY {
			t.Run("the default shell of a terminal is bash", func(t *testing.T) {
				p, keyboard, scr := h.startOnTerminal(t, sb, &atoll.Command{})
				_, _ = io.WriteString(keyboard, "echo ba''sh ${BASH_VERSINFO[0]}\r")
				scr.waitForText(t, h, "bash 5\r\n")
				h.killProcess(t, p)
			})
		}
		if caps.Dial && caps.Files {
			t.Run("a server inside answers a client outside", func(t *testing.T) { h.fetchFromServer(t, sb) })
		}
	}},
}

// fetchFromServer starts python's HTTP server inside and fetches a file from it.
func (h *harness) fetchFromServer(t *testing.T, sb atoll.Sandbox) {
	h.writeFile(t, sb, "site/index.html", "served")
	server := h.startProcess(t, sb, &atoll.Command{Args: []string{"python3", "-m", "http.server", "8000", "-d", "site"}})
	client := atoll.HTTPClient(sb, 8000)
	h.waitUntil(t, h.shortLimit(), func() error {
		resp, err := client.Get("http://localhost/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(body) != "served" {
			t.Errorf("GET: %s, %q, %v", resp.Status, body, err)
		}
		return nil
	})
	h.killProcess(t, server)
}

// pythonWorks uses features that have failed in sandboxes before: shared memory and semaphores, many
// threads, file locks, and libraries written in C.
const pythonWorks = `
import hashlib, multiprocessing, sqlite3, ssl, tempfile, threading
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        total = sum(pool.map(square, range(10)))
    done = threading.Barrier(20)
    threads = [threading.Thread(target=done.wait) for _ in range(20)]
    for t in threads: t.start()
    for t in threads: t.join()
    with tempfile.NamedTemporaryFile() as f:
        db = sqlite3.connect(f.name)
        db.execute("create table t (n)")
        db.executemany("insert into t values (?)", [(1,), (2,)])
        db.commit()
        rows = db.execute("select count(*) from t").fetchone()[0]
    print("workers", total, "database", rows, "secure", bool(ssl.create_default_context()) and len(hashlib.sha256(b"").digest()) == 32)
`

// packageWorks builds a package and installs it, as root.
const packageWorks = `
dir=$(mktemp -d)
mkdir -p "$dir/DEBIAN" "$dir/usr/bin"
printf 'Package: atoll-test\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a test\n' >"$dir/DEBIAN/control"
printf '#!/bin/sh\necho installed "$@"\n' >"$dir/usr/bin/atoll-test"
chmod -R u=rwX,go=rX "$dir"
chmod 755 "$dir/usr/bin/atoll-test"
dpkg-deb --build "$dir" "$dir.deb" >/dev/null
dpkg --install "$dir.deb" >/dev/null
atoll-test "$(dpkg-query -W -f='${Version}' atoll-test)"
`

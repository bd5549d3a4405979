package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testengine"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/packaging/internal/outdir"
	"github.com/seed46cd37a8/atoll/packaging/internal/programs"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil { // where the program runs
		panic(err)
	}
	os.Exit(m.Run())
}

// allPlatforms are the platforms of a release.
var allPlatforms = []programs.Platform{{OS: "linux", Arch: "amd64"}, {OS: "linux", Arch: "arm64"}, {OS: "darwin", Arch: "amd64"}, {OS: "darwin", Arch: "arm64"}, {OS: "windows", Arch: "amd64"}}

// newRelease returns a release of version 1.2.3 without programs.
func newRelease(t *testing.T) *release {
	t.Helper()
	r := &release{version: "1.2.3", time: time.Date(2030, 1, 2, 3, 4, 6, 0, time.UTC), work: t.TempDir(), dir: t.TempDir()}
	r.extras = []file{{name: "LICENSE", data: []byte("free\n")}, {name: "man/atoll.1", data: []byte(".TH ATOLL 1\n")}}
	return r
}

// newFakeRelease returns a release for all platforms whose programs are a few bytes.
func newFakeRelease(t *testing.T) *release {
	t.Helper()
	r := newRelease(t)
	for _, p := range allPlatforms {
		b := build{p, map[string]string{}}
		for _, name := range programNames(p) {
			b.paths[name] = filepath.Join(r.work, p.OS+p.Arch+name)
			if err := os.WriteFile(b.paths[name], []byte(name+" for "+p.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r.built = append(r.built, b)
	}
	return r
}

// runSteps runs steps of a release.
func runSteps(t *testing.T, steps ...func() error) {
	t.Helper()
	for _, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// writeFakeFiles writes what needs no real programs.
func writeFakeFiles(t *testing.T, r *release) {
	t.Helper()
	ctx := t.Context()
	runSteps(t,
		func() error { return r.writeArchives(ctx) }, func() error { return r.writeNPM(ctx) }, func() error { return r.writeWheels(ctx) },
		func() error { return r.writeInstallers(ctx) }, func() error { return r.writeChecksums(ctx) },
	)
}

// All platforms have their archive, their package for npm and their wheel, and two builds are the same.
func TestFiles(t *testing.T) {
	r := newFakeRelease(t)
	writeFakeFiles(t, r)
	want := []string{
		"atoll.rb", "atoll_1.2.3_darwin_amd64.tar.gz", "atoll_1.2.3_darwin_arm64.tar.gz", "atoll_1.2.3_linux_amd64.tar.gz",
		"atoll_1.2.3_linux_arm64.tar.gz", "atoll_1.2.3_windows_amd64.zip",
		"atoll_cli-1.2.3-py3-none-macosx_12_0_arm64.whl", "atoll_cli-1.2.3-py3-none-macosx_12_0_x86_64.whl",
		"atoll_cli-1.2.3-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
		"atoll_cli-1.2.3-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl",
		"atoll_cli-1.2.3-py3-none-win_amd64.whl", "checksums.txt", "install.sh", "npm-atoll-1.2.3.tgz", "npm-atoll-darwin-arm64-1.2.3.tgz",
		"npm-atoll-darwin-x64-1.2.3.tgz", "npm-atoll-linux-arm64-1.2.3.tgz", "npm-atoll-linux-x64-1.2.3.tgz", "npm-atoll-win32-x64-1.2.3.tgz", "server.json",
	}
	if got := listDir(t, r.dir); !slices.Equal(got, want) {
		t.Errorf("got the files\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	again := newFakeRelease(t)
	writeFakeFiles(t, again)
	if first, second := readFile(t, filepath.Join(r.dir, checksums)), readFile(t, filepath.Join(again.dir, checksums)); first != second {
		t.Errorf("two builds differ:\n%s\n%s", first, second)
	}
	archive, err := zip.OpenReader(filepath.Join(r.dir, "atoll_1.2.3_windows_amd64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if f := archive.File[0]; f.Name != "atoll_1.2.3_windows_amd64/atoll.exe" || f.Mode() != 0o755 {
		t.Errorf("the first file of the zip is %s with mode %s", f.Name, f.Mode())
	}
}

// The formula names the archives that exist, with their checksums.
func TestFormula(t *testing.T) {
	r := newFakeRelease(t)
	writeFakeFiles(t, r)
	text := readFile(t, filepath.Join(r.dir, "atoll.rb"))
	for _, b := range r.built {
		name := r.archiveName(b)
		sum, err := r.sumFile(name)
		if err != nil {
			t.Fatal(err)
		}
		system, arch := map[string]string{"darwin": "macos", "linux": "linux"}[b.OS], map[string]string{"amd64": "intel", "arm64": "arm"}[b.Arch]
		want := fmt.Sprintf("    on_%s do\n      url %q\n      sha256 %q\n", arch, forge+"/releases/download/v1.2.3/"+name, sum)
		_, section, _ := strings.Cut(text, "  on_"+system+" do\n")
		section, _, _ = strings.Cut(section, "\n  end\n")
		if has := strings.Contains(section, want); has != (b.OS != "windows") {
			t.Errorf("the formula has the archive of %s: %t\n%s", b, has, text)
		}
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-alpha": "1.2.3a0", "1.2.3-beta.12": "1.2.3b12", "1.2.3-nightly.7": "1.2.3.dev0", "1.2.3-rc.x": "1.2.3.dev0",
	} {
		if got := pythonVersion(version); got != want {
			t.Errorf("%s is %s for Python, want %s", version, got, want)
		}
	}
}

// Wrong input gets an error before anything is built, and other files stay.
func TestWrongInput(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	host := runtime.GOOS + "/" + runtime.GOARCH
	for _, test := range []struct {
		o    options
		want string
	}{
		{options{}, "like v1.2.3"},
		{options{version: "1.2.3", platforms: host}, "like v1.2.3"},
		{options{version: "v1.2", platforms: host}, "like v1.2.3"},
		{options{version: "v1.2.3+4", platforms: host}, "like v1.2.3"},
		{options{version: "v1.2.3", platforms: "linux"}, "like linux/amd64"},
		{options{version: "v1.2.3", platforms: "plan9/amd64," + host}, "like linux/amd64"},
		{options{version: "v1.2.3", platforms: "darwin/arm64"}, "this machine's"},
	} {
		if err := runRelease(t.Context(), test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want an error with %q", test.o, err, test.want)
		}
	}
	if err := outdir.Check(full, "release", checksums); err == nil {
		t.Error("a directory with other files would be replaced")
	}
}

// Each package of a real build is installed, and runs a sandbox.
func TestInstalled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("package managers need root")
	}
	r := newRelease(t)
	ctx := t.Context()
	runSteps(t,
		func() error {
			return r.buildPrograms(ctx, []programs.Platform{{OS: runtime.GOOS, Arch: runtime.GOARCH}})
		},
		func() error { r.extras = nil; return r.addExtras(ctx, "") },
		func() error { return r.writeMaterials(ctx) }, func() error { return r.writeLinuxPackages(ctx) },
	)
	writeFakeFiles(t, r)
	t.Run("deb", func(t *testing.T) { checkDeb(t, r) })
	t.Run("rpm", func(t *testing.T) { checkRPM(t, r) })
	t.Run("npm", func(t *testing.T) { checkNPM(t, r) })
	t.Run("wheel", func(t *testing.T) { checkWheel(t, r) })
	t.Run("script", func(t *testing.T) { checkScript(t, r) })
	t.Run("image", func(t *testing.T) { checkImage(t, r) })
	t.Run("materials", func(t *testing.T) { checkMaterials(t, r) })
}

// checkProgram runs a command in a sandbox of an installed atoll, and compares its version.
func checkProgram(t *testing.T, program string, args ...string) {
	t.Helper()
	run := func(more ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, append(args, more...)...)
		cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+stateDir(t), "ATOLL_VERSION=v1.2.3") // of the script
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("version"); err != nil || !strings.HasPrefix(out, "atoll v1.2.3") {
		t.Errorf("%s version: %v\n%s", program, err, out)
	}
	out, err := run("run", "--", "sh", "-c", "echo hi; exit 7")
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 7 || out != "hi\n" {
		t.Errorf("%s run: %v, want hi and the exit code 7\n%s", program, err, out)
	}
}

// stateDir returns an empty directory with a short path, for sockets.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "at.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func checkDeb(t *testing.T, r *release) {
	tree := t.TempDir()
	mustRun(t, "tar", "-xf", testenv.Debian(t), "-C", tree)
	copyFile(t, filepath.Join(r.dir, "atoll_1.2.3_linux_"+runtime.GOARCH+".deb"), filepath.Join(tree, "atoll.deb"))
	mustRun(t, "chroot", tree, "dpkg", "-i", "atoll.deb")
	if out := mustRun(t, "chroot", tree, "dpkg", "--verify", "atoll"); out != "" {
		t.Errorf("dpkg --verify: %s", out)
	}
	checkProgram(t, filepath.Join(tree, "usr/bin/atoll"))
	if unit := readFile(t, filepath.Join(tree, "usr/lib/systemd/system/atoll.service")); !strings.Contains(unit, "ExecStart=/usr/bin/atoll serve\n") {
		t.Errorf("the unit does not start /usr/bin/atoll:\n%s", unit)
	}
	mustRun(t, "chroot", tree, "dpkg", "-r", "atoll")
	if _, err := os.Stat(filepath.Join(tree, "usr/bin/atoll")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after dpkg -r: %v", err)
	}
}

func checkRPM(t *testing.T, r *release) {
	testenv.Need(t, testenv.Program("rpm", "rpm"))
	tree := t.TempDir()
	mustRun(t, "rpm", "--root", tree, "--initdb")
	mustRun(t, "rpm", "--root", tree, "-i", "--nodeps", "--ignorearch", "--ignoreos", filepath.Join(r.dir, "atoll_1.2.3_linux_"+runtime.GOARCH+".rpm"))
	checkProgram(t, filepath.Join(tree, "usr/bin/atoll"))
	if out := mustRun(t, "rpm", "--root", tree, "-q", "atoll"); !strings.HasPrefix(out, "atoll-1.2.3-1.") {
		t.Errorf("rpm -q: %s", out)
	}
}

// checkNPM installs the packages from a registry, as npx does.
func checkNPM(t *testing.T, r *release) {
	testenv.Need(t, testenv.Program("npx", "npm"))
	registry := httptest.NewServer(npmRegistry(t, r))
	defer registry.Close()
	cache := t.TempDir()
	checkProgram(t, "npx", "--yes", "--registry="+registry.URL, "--cache="+cache, "atoll")

	dir := t.TempDir() // without the package of the platform
	npm := func(args ...string) *exec.Cmd {
		return exec.Command("npm", append(args, "--prefix="+dir, "--registry="+registry.URL, "--cache="+cache)...)
	}
	if out, err := npm("install", "--omit=optional", "atoll").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	starter := filepath.Join(dir, "node_modules/.bin/atoll")
	if out, err := exec.Command(starter).CombinedOutput(); err == nil || !strings.Contains(string(out), "--omit=optional") {
		t.Errorf("without the program: %v\n%s", err, out)
	}
	if out, err := npm("install", "atoll", "--include=optional", "--force").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkSignal(t, starter)
}

// checkSignal sends a signal to the starter alone, which must end with the program.
func checkSignal(t *testing.T, starter string) {
	cmd := exec.Command(starter, "run", "--", "sh", "-c", "echo ready; exec sleep 1000")
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+stateDir(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(testenv.Scale(30*time.Second), func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	io.Copy(io.Discard, out)
	err = cmd.Wait()
	if !kill.Stop() || err == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("after SIGINT the starter ended with %v, want the exit code 130", cmd.ProcessState)
	}
}

// npmRegistry returns a registry with the packages of r.
func npmRegistry(t *testing.T, r *release) http.Handler {
	tarballs, err := filepath.Glob(filepath.Join(r.dir, "npm-*.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	for _, tarball := range tarballs {
		p := map[string]any{}
		if err := json.Unmarshal(tarContent(t, tarball, "package/package.json"), &p); err != nil {
			t.Fatal(err)
		}
		p["dist"] = map[string]string{"tarball": path.Base(tarball)}
		all[p["name"].(string)] = p
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name := strings.TrimPrefix(req.URL.Path, "/")
		if strings.HasSuffix(name, ".tgz") {
			http.ServeFile(w, req, filepath.Join(r.dir, path.Base(name)))
			return
		}
		p, ok := all[name]
		if !ok {
			http.NotFound(w, req)
			return
		}
		version := map[string]any{}
		for key, value := range p {
			version[key] = value
		}
		version["dist"] = map[string]string{"tarball": "http://" + req.Host + "/" + p["dist"].(map[string]string)["tarball"]}
		json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": r.version}, "versions": map[string]any{r.version: version}})
	})
}

func checkWheel(t *testing.T, r *release) {
	testenv.Need(t, testenv.Program("python3", "python3-venv"))
	wheels, err := filepath.Glob(filepath.Join(r.dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%s, %v", wheels, err)
	}
	dir := t.TempDir()
	mustRun(t, "python3", "-m", "venv", dir)
	pip := filepath.Join(dir, "bin/pip")
	mustRun(t, pip, "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", wheels[0])
	program := filepath.Join(dir, "bin/atoll")
	checkProgram(t, program)
	mustRun(t, pip, "uninstall", "--quiet", "--yes", "atoll-cli")
	if _, err := os.Stat(program); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after pip uninstall: %v", err)
	}
}

// checkScript runs install.sh with each shell against a server of releases, a good and several bad ones.
func checkScript(t *testing.T, r *release) {
	archive := r.archiveName(r.built[0])
	var change func(name string, data []byte) []byte // changes what the server sends
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		name := path.Base(req.URL.Path)
		data, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil || req.URL.Path != "/latest/download/"+name && req.URL.Path != "/download/v1.2.3/"+name {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if change != nil {
			data = change(name, data)
		}
		w.Write(data)
	}))
	defer server.Close()
	busybox := testenv.Busybox(t)
	install := func(dir string, shell []string, env ...string) (string, error) {
		script, err := os.Open(filepath.Join(r.dir, "install.sh")) // as curl | sh does
		if err != nil {
			t.Fatal(err)
		}
		defer script.Close()
		cmd := exec.CommandContext(t.Context(), shell[0], shell[1:]...)
		cmd.Env = append(append(os.Environ(), "ATOLL_BASE_URL="+server.URL, "ATOLL_INSTALL_DIR="+dir), env...)
		cmd.Stdin = script
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, shell := range [][]string{{"sh"}, {"bash"}, {busybox, "sh"}} {
		dir := filepath.Join(t.TempDir(), "not yet")
		if out, err := install(dir, shell); err != nil || !strings.Contains(out, "atoll v1.2.3") || !strings.Contains(out, dir+" is not in PATH") {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
		if got := listDir(t, dir); !slices.Equal(got, slices.Sorted(slices.Values(programNames(programs.Platform{OS: "linux"})))) {
			t.Errorf("%s installed %s", shell, got)
		}
		if shell[0] == "sh" {
			checkProgram(t, filepath.Join(dir, "atoll"))
		}
	}
	if out, err := install(t.TempDir(), []string{"sh"}, "ATOLL_VERSION=1.2.3"); err != nil {
		t.Errorf("a version: %v\n%s", err, out)
	}
	for _, test := range []struct {
		name, want string
		env        []string
		change     func(name string, data []byte) []byte
	}{
		{name: "changed", want: "it is damaged or changed", change: func(name string, data []byte) []byte {
			if name == archive {
				data[len(data)/2] ^= 1
			}
			return data
		}},
		{name: "cut off", want: "cannot download", change: func(name string, data []byte) []byte {
			if name == archive {
				return data[:len(data)/2]
			}
			return data
		}},
		{name: "no such version", want: "cannot download", env: []string{"ATOLL_VERSION=v9.9.9"}},
		{name: "no archive", want: "has no archive for linux_" + runtime.GOARCH, change: func(name string, data []byte) []byte {
			return bytes.ReplaceAll(data, []byte(archive), []byte("x"+archive[1:]))
		}},
	} {
		dir := t.TempDir()
		change = test.change
		if out, err := install(dir, []string{"sh"}, test.env...); err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, want %q\n%s", test.name, err, test.want, out)
		}
		if left := listDir(t, dir); len(left) > 0 {
			t.Errorf("%s: it left %s", test.name, left)
		}
	}
	change = nil
	if out, err := install("/proc/none", []string{"sh"}); err == nil || !strings.Contains(out, "set ATOLL_INSTALL_DIR") {
		t.Errorf("a directory that cannot be: %v\n%s", err, out)
	}
	whole := readFile(t, filepath.Join(r.dir, "install.sh"))
	cut := exec.Command("sh") // a script that was cut off does nothing
	cut.Env = append(os.Environ(), "ATOLL_BASE_URL="+server.URL, "ATOLL_INSTALL_DIR="+t.TempDir())
	cut.Stdin = strings.NewReader(strings.TrimSuffix(whole, "main\n"))
	if out, err := cut.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("without its last line: %v\n%s", err, out)
	}
	testenv.Need(t, testenv.Program("shellcheck", "shellcheck"))
	mustRun(t, "shellcheck", filepath.Join(r.dir, "install.sh"))
}

// checkImage loads the image into a Docker Engine and runs it.
func checkImage(t *testing.T, r *release) {
	if !testenv.RunAll() {
		t.Skip("it builds the programs once more; CHECK_ALL=1 runs it, and deploy/kubernetes tests the image")
	}
	engine := testengine.Docker(t)
	runSteps(t, func() error { return r.writeImages(t.Context()) })
	docker := func(args ...string) string {
		return mustRun(t, "docker", append([]string{"--host", engine.Host}, args...)...)
	}
	docker("load", "-i", filepath.Join(r.dir, "atoll_1.2.3_linux_"+runtime.GOARCH+".image.tar"))
	if out := docker("run", "--rm", "--network=none", "atoll:1.2.3", "version"); !strings.HasPrefix(out, "atoll v1.2.3") {
		t.Errorf("atoll version in the image: %s", out)
	}
}

// checkMaterials checks that the bill names modules of each program, with their versions.
func checkMaterials(t *testing.T, r *release) {
	for name, module := range map[string]string{"atoll": "github.com/spf13/cobra", "atoll-server": "github.com/aws/smithy-go", "atoll-engine": "gvisor.dev/gvisor", "atoll-native": "github.com/vishvananda/netlink", "atoll-guest": "golang.org/x/sys", "atoll-kubernetes": "github.com/coder/websocket", "atoll-modal": "google.golang.org/grpc", "atoll-dagger": "dagger.io/dagger"} {
		text := tarContent(t, filepath.Join(r.dir, "atoll_1.2.3_sbom.tar.gz"), fmt.Sprintf("%s_1.2.3_linux_%s.cdx.json", name, runtime.GOARCH))
		var bill struct {
			BOMFormat  string
			Components []struct{ Name, Version, PURL string }
		}
		if err := json.Unmarshal(text, &bill); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(bill.Components, func(c struct{ Name, Version, PURL string }) bool { return c.Name == module })
		if bill.BOMFormat != "CycloneDX" || i < 0 || bill.Components[i].Version == "" {
			t.Errorf("%s: %s does not name %s", name, bill.BOMFormat, module)
		}
	}
}

// tarContent returns the content of a file in a compressed archive.
func tarContent(t *testing.T, archive, name string) []byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(unpacked); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatalf("%s in %s: %v", name, archive, err)
		}
		if h.Name == name {
			data, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
}

func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, []byte(readFile(t, from)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func listDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// Command release builds the files of a release from the checked-out commit: archives, Debian and
// RPM packages, packages for npm and PyPI, the server's image, a Homebrew formula, bills of
// materials, and checksums.
// The same commit and compiler make the same files, byte for byte. It publishes nothing.
//
//	go run ./packaging/release -version v1.2.3 [-o DIR] [-platforms OS/ARCH,...] [-man DIR]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/seed46cd37a8/atoll/packaging/internal/outdir"
	"github.com/seed46cd37a8/atoll/packaging/internal/programs"
)

func main() {
	var o options
	flag.StringVar(&o.version, "version", "", "`version` of the release, such as v1.2.3 or v1.2.3-rc.1")
	flag.StringVar(&o.out, "o", "bin/release", "`directory` of the files, which is replaced")
	flag.StringVar(&o.platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64", "`platforms` of the release; this machine's must be one of them")
	flag.StringVar(&o.man, "man", "", "`directory` of man pages, which make man writes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runRelease(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options holds the flags of the program.
type options struct{ version, out, platforms, man string }

// A release is the state of one run of the program.
type release struct {
	version string    // without v
	time    time.Time // of the commit, and so of all files
	dir     string    // of the files
	work    string    // a temporary directory
	extras  []file    // what every archive has beside the programs
	built   []build   // one for each platform
}

// A build is the programs for one platform.
type build struct {
	programs.Platform
	paths map[string]string // of each program
}

// programNames returns the programs of a release for a platform, in the order of its files.
func programNames(p programs.Platform) []string {
	if !p.HasClient() {
		return []string{"atoll", "atoll-kubernetes", "atoll-modal", "atoll-dagger"}
	}
	return []string{"atoll", "atoll-server", "atoll-kubernetes", "atoll-modal", "atoll-dagger"}
}

// forge is the URL of the source code. Its releases have the files.
const forge = "https://github.com/seed46cd37a8/atoll"

// versionPattern matches a version of https://semver.org, after v. A build number (+1) is no part of it: npm
// and Debian compare it in different ways.
var versionPattern = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

func runRelease(ctx context.Context, o options) error {
	if !versionPattern.MatchString(o.version) {
		return fmt.Errorf("version %q: write it like v1.2.3 or v1.2.3-rc.1, as in make release VERSION=v1.2.3", o.version)
	}
	platforms, err := parsePlatforms(o.platforms)
	if err != nil {
		return err
	}
	made, err := commitTime(ctx)
	if err != nil {
		return err
	}
	if err := outdir.Check(o.out, "release", checksums); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "atoll-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r := &release{version: o.version[1:], time: made, dir: filepath.Join(work, "files"), work: work}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.buildPrograms(ctx, platforms); err != nil {
		return err
	}
	if err := r.addExtras(ctx, o.man); err != nil {
		return err
	}
	if err := r.writeFiles(ctx); err != nil {
		return err
	}
	if err := replaceDir(r.dir, o.out); err != nil {
		return err
	}
	return printFiles(o.out)
}

// parsePlatforms parses a list of OS/ARCH.
func parsePlatforms(list string) ([]programs.Platform, error) {
	var all []programs.Platform
	for text := range strings.SplitSeq(list, ",") {
		system, arch, ok := strings.Cut(text, "/")
		p := programs.Platform{OS: system, Arch: arch}
		if _, known := npmNames[system]; !ok || !known || npmNames[arch] == "" {
			return nil, fmt.Errorf("platform %q: write it like linux/amd64; known are linux, darwin and windows, amd64 and arm64", text)
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	if host := (programs.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}); !slices.Contains(all, host) {
		return nil, fmt.Errorf("platforms %s: add %s, this machine's, whose atoll writes the completions", list, host)
	}
	return all, nil
}

// commitTime returns the time of the checked-out commit. It fails if files differ from the commit,
// because nobody could build the release again.
func commitTime(ctx context.Context) (time.Time, error) {
	changed, err := gitOutput(ctx, "status", "--porcelain")
	if err != nil {
		return time.Time{}, err
	}
	if changed != "" {
		return time.Time{}, fmt.Errorf("files differ from the commit: commit or stash them first:\n%s", changed)
	}
	text, err := gitOutput(ctx, "log", "-1", "--format=%ct")
	if err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

func gitOutput(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("git %s: %s", args[0], exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// buildPrograms builds all programs for all platforms.
func (r *release) buildPrograms(ctx context.Context, platforms []programs.Platform) error {
	for _, p := range platforms {
		dir := filepath.Join(r.work, p.OS+"-"+p.Arch)
		paths, err := programs.Build(ctx, dir, p, "v"+r.version, programNames(p)...)
		if err != nil {
			return err
		}
		r.built = append(r.built, build{p, paths})
	}
	return nil
}

// writeFiles writes all files of the release into r.dir.
func (r *release) writeFiles(ctx context.Context) error {
	steps := []func(context.Context) error{r.writeMaterials, r.writeArchives, r.writeLinuxPackages, r.writeNPM, r.writeWheels, r.writeImages, r.writeInstallers, r.writeChecksums}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replaceDir moves the files of from to a directory that it replaces.
func replaceDir(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if os.Rename(from, to) == nil {
		return nil
	}
	return os.CopyFS(to, os.DirFS(from)) // on another file system
}

// printFiles prints the name and size of each file of the release.
func printFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%.1f MB\t  %s\n", float64(info.Size())/1e6, filepath.Join(dir, e.Name()))
	}
	return w.Flush()
}

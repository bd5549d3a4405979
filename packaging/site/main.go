// Command site builds the manual in docs as a static site, with the VitePress that scripts/node
// installs. It fails if a link, an anchor or a picture is dead, or if a page would load something from
// another host. The same sources make the same site, byte for byte.
//
//	go run ./packaging/site [-o DIR] [-path /PATH/]
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
	"strings"
	"syscall"

	"github.com/seed46cd37a8/atoll/packaging/internal/outdir"
)

func main() {
	out := flag.String("o", "bin/docs", "`directory` of the site, which is replaced")
	prefix := flag.String("path", "/", "`path` of the site on its server, such as /atoll/")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runBuild(ctx, *out, *prefix); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// runBuild builds the site from the top directory of the repository.
func runBuild(ctx context.Context, out, prefix string) error {
	if err := outdir.Check(out, "site", "hashmap.json"); err != nil { // VitePress writes hashmap.json
		return err
	}
	modules, err := installVitePress(ctx)
	if err != nil {
		return err
	}
	s := site{docs: "docs", modules: modules, out: out, prefix: prefix}
	if err := s.buildSite(ctx); err != nil {
		return err
	}
	pages, err := s.checkSite()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d pages; look at them with python3 -m http.server -b 127.0.0.1 -d %[1]s\n", out, pages)
	return nil
}

// installVitePress runs scripts/node and returns the directory of npm's modules.
func installVitePress(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("node"); err != nil {
		return "", errors.New("there is no node in PATH: apt-get install npm, or install Node.js 20 or newer from https://nodejs.org")
	}
	cmd := exec.CommandContext(ctx, "scripts/node", "site")
	cmd.Stderr = os.Stderr
	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("scripts/node site: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), "node_modules"), nil
}

// A site is a manual as HTML.
type site struct {
	docs    string // directory of the Markdown files and of VitePress's configuration
	modules string // directory of npm's modules, with VitePress
	out     string // directory of the HTML
	prefix  string // path of the site on its server, with a slash at both ends
}

// buildSite runs VitePress on a copy of docs. VitePress resolves modules from directories above, and writes beside its configuration.
// The error contains the output of VitePress, which names dead links.
func (s site) buildSite(ctx context.Context) error {
	if !strings.HasPrefix(s.prefix, "/") || !strings.HasSuffix(s.prefix, "/") {
		return fmt.Errorf("the path %q of the site does not begin and end with a slash", s.prefix)
	}
	dir, err := os.MkdirTemp("", "atoll-site")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(filepath.Join(dir, "docs"), os.DirFS(s.docs)); err != nil {
		return err
	}
	modules, err := filepath.Abs(s.modules)
	if err != nil {
		return err
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		return err
	}
	out, err := filepath.Abs(s.out)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "node", filepath.Join(modules, "vitepress", "bin", "vitepress.js"), "build", "docs", "--outDir", out, "--base", s.prefix)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	log, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("vitepress: %w\n%s", err, log)
	}
	if warning := warning.Find(log); warning != nil {
		return fmt.Errorf("vitepress: %s", warning)
	}
	return nil
}

// warning matches what VitePress prints of a page that it builds nevertheless, such as a block in a language without colours.
var warning = regexp.MustCompile(`(?m)^.*(not loaded|not found|\bwarn).*$`)

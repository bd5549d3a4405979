package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// quickMinutes is the budget of make check, unless CHECK_MINUTES says otherwise.
const quickMinutes = 3

// runQuick checks what changed since a commit, and the packages that import it: gofmt, vet,
// staticcheck, and the quick tests. It installs and builds nothing.
func runQuick(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("check quick", flag.ExitOnError)
	base := flags.String("base", "", "the commit to compare with; where main and HEAD parted if it is empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	budget, err := parseMinutes(os.Getenv("CHECK_MINUTES"))
	if err != nil {
		return err
	}
	if budget == 0 {
		budget = quickMinutes * time.Minute
	}
	c := newCheck(budget, 1)
	if err := c.readTree(); err != nil {
		return err
	}
	changed, err := changedFiles(*base)
	if err != nil {
		return err
	}
	selected, engines := c.quickSteps(changed)
	if len(selected) == 0 {
		fmt.Println("no Go package changed")
		return nil
	}
	total, leftOut := c.runSteps(ctx, selected)
	total.printFailed("")
	fmt.Fprintf(&total.w, "\n%d passed, %d failed, %d skipped in %.0f s\n", total.passed, len(total.failed), total.skipped, time.Since(c.begin).Seconds())
	printLeftOut(&total.w, append(leftOut, engines...))
	if err := errors.Join(total.flush(), ctx.Err()); err != nil {
		return err
	}
	if len(total.failed) > 0 {
		return errFailed
	}
	return nil
}

// changedFiles returns the files that differ from a commit, and new ones.
func changedFiles(base string) ([]string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	for _, main := range []string{"origin/main", "main"} {
		if base == "" {
			base, _ = git("merge-base", "HEAD", main) // "" where there is no such branch
		}
	}
	if base == "" {
		return nil, errors.New("there is no branch main to compare with; name a commit with BASE=")
	}
	differ, err := git("diff", "--name-only", base, "--")
	if err != nil {
		return nil, fmt.Errorf("git diff %s: %w", base, err)
	}
	added, err := git("ls-files", "--others", "--exclude-standard")
	return strings.Fields(differ + "\n" + added), err
}

// quickSteps returns the steps for files that changed: first the packages of these files, then the
// packages whose tests link those, the smallest first. It leaves out tests that start engines, which take
// minutes. Other modules have no steps.
func (c *check) quickSteps(changed []string) (selected []step, engines []leftOut) {
	pkgs := c.packages["."]
	dirs := map[string]bool{}
	for _, name := range changed {
		dir := filepath.Dir(name)
		dir, _, _ = strings.Cut(dir, "/testdata")
		dirs[dir] = true
	}
	var own, importers []string
	for name := range pkgs.all {
		if dirs[name] {
			own = append(own, name)
		}
	}
	for _, name := range pkgs.names {
		if !dirs[name] && slices.ContainsFunc(pkgs.sourceFolders([]string{name}, nil), func(dir string) bool { return dirs[dir] }) {
			importers = append(importers, name)
		}
	}
	bySize := func(a, b string) int {
		return cmp.Or(cmp.Compare(len(pkgs.deps[a]), len(pkgs.deps[b])), cmp.Compare(a, b))
	}
	slices.SortFunc(own, bySize)
	slices.SortFunc(importers, bySize)
	all := slices.Concat(own, importers)
	if len(own) == 0 {
		return nil, nil
	}
	paths := make([]string, len(all))
	for i, name := range all {
		paths[i] = "./" + name
	}
	selected = []step{
		{name: "gofmt", about: "all files", command: []string{"sh", "-c", `test -z "$(gofmt -l . | tee /dev/stderr)"`}, alone: true},
		{name: "vet", about: "these packages and those that import them", command: append([]string{"go", "vet"}, paths...), alone: true},
		{name: "staticcheck", about: "the packages that changed", command: append([]string{"go", "tool", "staticcheck"}, paths[:len(own)]...), alone: true},
	}
	const usual = 0.3 // minutes, until the record knows better
	for _, name := range all {
		if _, tested := pkgs.deps[name]; !tested {
			continue
		}
		if pkgs.linksAny(name, startEngines) {
			engines = append(engines, leftOut{name, "start engines in their tests, which make test runs"})
			continue
		}
		selected = append(selected, step{name: "quick " + name, about: "the quick tests", packages: []string{name}, short: true, minutes: usual})
	}
	return selected, engines
}

package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// modulePath is the path of the main module.
const modulePath = "github.com/seed46cd37a8/atoll"

// A catalogue holds the packages of a module.
type catalogue struct {
	dir   string              // of the module, "." for the main one
	deps  map[string][]string // what the tests of a package link, by the package's path from the top of the module
	names []string            // the packages with tests, sorted
	all   map[string]bool     // the packages, with tests or without
}

// listPackages asks go for the packages of the module in dir.
func listPackages(dir string) (*catalogue, error) {
	cmd := exec.Command("go", "list", "-test", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	c := &catalogue{dir: dir, deps: map[string][]string{}, all: map[string]bool{}}
	module := path.Join(modulePath, dir)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name, ok := strings.CutSuffix(fields[0], ".test") // a test program
		name = relativePath(module, name)
		if !ok {
			c.all[name] = true
			continue
		}
		// Packages that are compiled anew for the test program have its name in brackets behind theirs.
		deps := slices.DeleteFunc(fields[1:], func(dep string) bool { return strings.HasPrefix(dep, "[") })
		c.deps[name] = append(deps, path.Join(module, name))
		c.names = append(c.names, name)
	}
	slices.Sort(c.names)
	return c, nil
}

// relativePath returns the path of a package from the top of its module, "." for the top.
func relativePath(module, pkg string) string {
	if pkg == module {
		return "."
	}
	return strings.TrimPrefix(pkg, module+"/")
}

// matchPackages returns the packages that a step tests.
func (c *catalogue) matchPackages(s *step, all []step) []string {
	var named []string
	for _, other := range all {
		if other.module == s.module && !other.race {
			named = append(named, other.packages...)
		}
	}
	var found []string
	for _, name := range c.names {
		in := matchesAny(s.packages, name)
		if s.rest {
			in = !matchesAny(named, name)
		}
		if in && !matchesAny(s.except, name) && !c.linksAny(name, s.without) {
			found = append(found, name)
		}
	}
	return found
}

// matchesAny reports whether one of the patterns, in which ... is a wildcard at the end, matches name.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "...")
		parent := strings.TrimSuffix(prefix, "/")
		return name == pattern || wild && (prefix == "" || name == parent || strings.HasPrefix(name, prefix))
	})
}

// linksAny reports whether the tests of a package link another one with one of parts in its path.
func (c *catalogue) linksAny(name string, parts []string) bool {
	return slices.ContainsFunc(c.deps[name], func(dep string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(dep, part) })
	})
}

// sourceFolders returns the folders of this repository that decide what a step's tests find, sorted.
func (c *catalogue) sourceFolders(packages, uses []string) []string {
	dirs := map[string]bool{}
	add := func(pkg string) {
		if pkg == modulePath || strings.HasPrefix(pkg, modulePath+"/") {
			dirs[relativePath(modulePath, pkg)] = true
		}
	}
	for _, name := range packages {
		for _, dep := range c.deps[name] {
			add(dep)
		}
	}
	for _, name := range uses {
		add(path.Join(modulePath, name))
	}
	return slices.Sorted(maps.Keys(dirs))
}

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sources are the files of the working tree that git would keep, by folder.
type sources struct {
	files  map[string][]string
	hashes map[string]string // of the files of a folder, by its path
}

// listSources asks git for the files. It returns nil without git.
func listSources() *sources {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil
	}
	s := &sources{files: map[string][]string{}, hashes: map[string]string{}}
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		dir := filepath.Dir(name)
		s.files[dir] = append(s.files[dir], name)
		if top, _, ok := strings.Cut(dir+"/", "/testdata/"); ok { // files of the tests of that folder
			s.files[top] = append(s.files[top], name)
		}
	}
	return s
}

// readCommit returns the id of the commit that is checked out, or "" without git.
func readCommit() string {
	out, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// hashFolders returns a hash of the files in these folders, and of those that decide about all steps; "" without
// git. It reads each folder once.
func (s *sources) hashFolders(folders []string) string {
	if s == nil {
		return ""
	}
	all := sha256.New()
	for _, dir := range append([]string{"internal/testing/check", "scripts"}, folders...) {
		if _, ok := s.hashes[dir]; !ok {
			s.hashes[dir] = hashFiles(s.files[dir])
		}
		fmt.Fprintln(all, dir, s.hashes[dir])
	}
	fmt.Fprintln(all, hashFiles([]string{"go.mod", "go.sum"}))
	return fmt.Sprintf("%x", all.Sum(nil))
}

// hashFiles returns a hash of the names and the contents of files. It leaves out the contents of a file that
// it can't read, such as one that git still lists and somebody removed.
func hashFiles(names []string) string {
	hash := sha256.New()
	for _, name := range names {
		fmt.Fprintln(hash, name)
		if f, err := os.Open(name); err == nil {
			_, _ = io.Copy(hash, f)
			f.Close()
		}
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

package gitignore_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/gitignore"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// A gitRepo is a repository with files that git and the package sort into ignored ones
// and others.
type gitRepo struct {
	t   *testing.T
	dir string
}

func newGitRepo(t *testing.T) *gitRepo {
	t.Helper()
	testenv.Need(t, testenv.Program("git", "git"))
	r := &gitRepo{t, t.TempDir()}
	r.runGit("init", "-q")
	return r
}

// runGit runs git without the user's own configuration.
func (r *gitRepo) runGit(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "core.ignorecase=false", "-c", "core.precomposeunicode=false"}, args...)...)
	cmd.Dir = r.dir
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") }) // of a hook that runs the test
	cmd.Env = append(own, "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "HOME="+r.dir, "XDG_CONFIG_HOME="+r.dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		r.t.Fatalf("git %q: %v: %s", args, err, errs.String())
	}
	return string(out)
}

// writeTree replaces the files. Names that the file system refuses are left out.
func (r *gitRepo) writeTree(files []string) {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".git" {
			if err := os.RemoveAll(filepath.Join(r.dir, e.Name())); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for _, name := range files {
		at := filepath.Join(r.dir, filepath.FromSlash(name))
		if os.MkdirAll(filepath.Dir(at), 0o755) == nil {
			_ = os.WriteFile(at, []byte("x"), 0o644) // a directory may have that name
		}
	}
}

// writeRules writes the file with the rules, where git finds it without listing it.
func (r *gitRepo) writeRules(rules string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Join(r.dir, ".git", "info"), 0o755); err != nil { // git's templates may be missing
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, ".git", "info", "exclude"), []byte(rules), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// gitFiles returns the files that git does not ignore.
func (r *gitRepo) gitFiles() []string {
	r.t.Helper()
	out := r.runGit("ls-files", "-z", "-o", "--exclude-standard")
	files := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	if out == "" {
		files = nil
	}
	slices.Sort(files)
	return files
}

// ourFiles returns the files that the rules do not ignore.
func (r *gitRepo) ourFiles(rules string) (files []string) {
	r.t.Helper()
	parsed := gitignore.Parse(rules)
	err := filepath.WalkDir(r.dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || at == r.dir {
			return err
		}
		if e.Name() == ".git" {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(r.dir, at)
		if rel = filepath.ToSlash(rel); err == nil && !e.IsDir() && !parsed.Match(rel, false) {
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

func (r *gitRepo) compareRules(rules string) {
	r.t.Helper()
	r.writeRules(rules)
	if want, got := r.gitFiles(), r.ourFiles(rules); !slices.Equal(want, got) {
		r.t.Errorf("rules %q: git retains %q, Match retains %q", rules, want, got)
	}
}

func TestLikeGit(t *testing.T) {
	r := newGitRepo(t)
	r.writeTree([]string{
		"a.c", "b.h", "d/e.c", "d/f.h", "a.o", "b.o", "c.o", "1.txt", "d.txt", "a.log", "d/a.log", "d/deep/er/a.log", "foo/bar", "x/foo/bar", "foo/x/y/bar",
		"#hash", "!bang", "sp ", "sp  ", "sp", "tab\t", "back\\slash", "star*", "q?", "br[ack", "]", "-", "^", "a-b", "Ä", "é/x", "trail\r", "foo", "build/out",
		"src/build/out", "node_modules/m/i.js", "p/node_modules/m/i.js", "ax/y/b", "a/b", "a/x/b", ".hidden", "d/.hidden", "\x01ctl", "new\nline",
	})
	for _, rules := range []string{
		"", "\n\n", "*\n!*/\n!*.c\n", "[!a].o\n", "[^a].o\n", "[[:digit:]].txt\n", "\ufeff*.log\n", "a\n\ufeffb*\n",
		"*.log", "*.log\r\n", "trail\\\r\n", "trail\r\r\n", "sp \n", "sp\\ \n", "sp\\  \n", "sp\\ \\ \n", "tab\t\n", "\\#hash\n", "#hash\n", "\\!bang\n", "!bang\n",
		"back\\\\slash\n", "back\\slash\n", "star\\*\n", "q\\?\n", "br\\[ack\n", "br[ack\n", "[]]\n", "[]-a]\n", "[a-]\n", "[\\]]\n", "[!]]\n", "[^-]\n", "[a\\-b]*\n",
		"/foo\n", "foo/\n", "/foo/\n", "foo/bar\n", "**/foo\n", "**/foo/bar\n", "foo/**\n", "foo/**/bar\n", "a**/b\n", "a/**b\n", "**\n", "***\n", "*/**\n", "**/\n", "/**\n", "/*\n", "/\n", "//\n", "/*/b\n",
		"foo/*\n!foo/x\n", "d\n!d/e.c\n", "d/*\n!d/deep\nd/deep/*\n!d/deep/er\n", "build/\n!src/build/\n", "node_modules\n", "?\n", "??\n", "*[[:upper:]]*\n", "[[:alpha:]][[:punct:]]*\n",
		"[[:bogus:]]*\n", "[[:digit:]\n", "[[:digit]]*\n", "[[:]\n", "[a-[:digit:]]\n", "[z-a]*\n", "foo\\\n", "\\\n", "a\\.c\n", "a\x00b.c\n", "*.c\n!a.c\n*.c\n", ".*\n", "*.*\n!.hidden\n",
		"d/*.c\n", "d/*\n", "*/*.log\n", "*/*/*.log\n", "d/**/*.log\n", "[[:cntrl:]]ctl\n", "new?line\n", "new[[:space:]]line\n", "Ä\n", "?\n", "[Ä]\n", "\\a.c\n", " a.c\n", "a.c \r\n", "*a*a*a*a*a*b\n",
		"foo/**/**/bar\n", "**/**/bar\n", "foo**bar\n", "foo/**\\/bar\n", "a[/]b\n", "a?b\n", "a[!x]b\n", "a*b\n", "[!a-b].o\n", "[[:xdigit:]].o\n", "[[:lower:][:digit:]].*\n", "*/\n", "!*/\n*\n", "d//e.c\n", "./a.c\n", "d/../a.c\n",
	} {
		r.compareRules(rules)
	}
}

// Random rules select the same files of random trees as git does.
func TestRandomRulesLikeGit(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	pieces := []string{
		"a", "b", "c", "ab", "*", "**", "?", "/", "/", "/", "[ab]", "[!a]", "[^b]", "[a-c]", "[[:alpha:]]", "[[:digit:]]", "[]a]", "[[:upper:]b]", "\\", "\\a", "\\*", " ", "\\ ",
		".", "-", "!", "#", "1", "A", "[", "]", "\t", "**/", "/**", "*.", "[!/]", "[a-", "[:", "\xff",
	}
	names := []string{"a", "b", "c", "ab", "abc", "a.b", "1", "A", "a b", "a ", "!a", "#a", "a*", "[a]", "-", "\\a", ".a", "\xff", "b\t"}
	rnd := rand.New(rand.NewPCG(5, 25))
	r := newGitRepo(t)
	for i := range rounds {
		if i%20 == 0 {
			var files []string
			for range 40 {
				var path []string
				for range 1 + rnd.IntN(4) {
					path = append(path, names[rnd.IntN(len(names))])
				}
				files = append(files, strings.Join(path, "/"))
			}
			r.writeTree(files)
		}
		var rules strings.Builder
		if rnd.IntN(10) == 0 {
			rules.WriteString("\ufeff")
		}
		for range 1 + rnd.IntN(5) {
			if rnd.IntN(3) == 0 {
				rules.WriteString("!")
			}
			for range 1 + rnd.IntN(5) {
				rules.WriteString(pieces[rnd.IntN(len(pieces))])
			}
			rules.WriteString([]string{"\n", "\n", "\n", "/\n", "\r\n", " \n", "\r\r\n", ""}[rnd.IntN(8)])
		}
		r.compareRules(rules.String())
		if t.Failed() {
			return
		}
	}
}

// A hostile rule cannot keep a match busy.
func TestManyStars(t *testing.T) {
	limit := testenv.Scale(10 * time.Second)
	begin := time.Now()
	rules := gitignore.Parse(strings.Repeat("*a", 200) + "b\n" + strings.Repeat("**/*a", 200) + "/b\n")
	if rules.Match(strings.Repeat("a", 250), false) || rules.Match(strings.Repeat(strings.Repeat("a", 20)+"/", 40)+"c", false) {
		t.Error("Match reports true")
	}
	if took := time.Since(begin); took > limit {
		t.Errorf("Match took %v, more than %v", took, limit)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("*.c\n!a.c\n", "d/a.c")
	f.Add("[[:digit:]", "1")
	f.Fuzz(func(t *testing.T, rules, path string) {
		if path == "" || strings.Contains("/"+path+"/", "//") {
			return
		}
		parsed := gitignore.Parse(rules)
		if first := parsed.Match(path, true); first != parsed.Match(path, true) {
			t.Error("the second answer differs")
		}
	})
}

func Example() {
	rules := gitignore.Parse("*.log\n!keep.log\nbuild/\n")
	fmt.Println(rules.Match("a/b.log", false), rules.Match("keep.log", false), rules.Match("build/x", false))
	// Output: true false true
}

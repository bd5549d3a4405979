package main

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A habit is a way of writing that CONTRIBUTING.md asks to avoid.
type habit struct {
	name    string
	pattern *regexp.Regexp // of a text; nil for names
	write   string         // what to write instead
	ceiling int            // the number of places there may be; it may only fall
}

// habits are what runProse looks for.
var habits = []habit{
	{"definition", regexp.MustCompile(`^\W*[\w.]+(?: \w+){0,2} (?:is|are) (?:what|that|those|why|how|who|whoever|whether|when|where|from when|for how)\b`),
		`"X returns ..." or "X holds ...", not "X is what ..."`, 3},
	{"relative", regexp.MustCompile(`(?:^|[.:;,(] |\b(?:for|of|by|to|from|with|than|as|but|and|or|is|are|not|if|then|tells|knows|says) )[Ww]ho [a-z]+|\b[Ww]hoever\b|\b[Ww]hat there is\b|(?:^|[.:;] )What [a-z]+`),
		`"if you ..." or a subject, not "who ..." or "what ..."`, 3},
	{"passive", regexp.MustCompile(`\b(?:is|are|was|were|be|been|being) (?:told|meant|had|written down|taken for|looked at|gone on with|minded)\b`),
		`name the actor: "Atoll records ...", not "is written down"`, 1},
	{"name", nil, "verb + object for a function or method that is not exported", 51},
}

// A place is where a habit shows.
type place struct {
	position string
	text     string
}

// runProse prints how often each habit shows in the files below paths, or in all, and fails if there
// are more than its ceiling. With -list it prints the places.
func runProse(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("check prose", flag.ExitOnError)
	list := flags.String("list", "", "print the places of this habit, or of all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := listSources()
	if s == nil {
		return fmt.Errorf("git doesn't list the files")
	}
	found, functions := map[string][]place{}, 0
	for _, file := range s.under(flags.Args()) {
		n, err := findHabits(file, found)
		if err != nil {
			return err
		}
		functions += n
	}
	failed := false
	for _, h := range habits {
		places := found[h.name]
		if *list == "all" || *list == h.name {
			for _, p := range places {
				fmt.Printf("%s: %s: %s\n", p.position, h.name, p.text)
			}
		}
		line := fmt.Sprintf("%-10s %5d", h.name, len(places))
		if h.pattern == nil && functions > 0 {
			line += fmt.Sprintf(", %d %% of %d functions", 100*len(places)/functions, functions)
		}
		if flags.NArg() == 0 && len(places) > h.ceiling {
			failed = true
			line += fmt.Sprintf(": more than %d; write %s (go run ./internal/testing/check prose -list %s)", h.ceiling, h.write, h.name)
		}
		fmt.Println(line)
	}
	if failed {
		return errFailed
	}
	return nil
}

// quoting are the files that show the habits as examples.
var quoting = []string{"CONTRIBUTING.md", "internal/testing/check/prose.go"}

// under returns the files of the tree that people read, below paths or anywhere, sorted.
func (s *sources) under(paths []string) []string {
	seen := map[string]bool{}
	for _, files := range s.files {
		for _, file := range files {
			read := strings.HasSuffix(file, ".go") || strings.HasSuffix(file, ".md") && !strings.HasPrefix(file, "docs/adr/")
			read = read && !slices.Contains(quoting, file)
			below := len(paths) == 0 || slices.ContainsFunc(paths, func(path string) bool {
				path = filepath.Clean(path)
				return file == path || strings.HasPrefix(file, path+"/")
			})
			if _, err := os.Stat(file); err != nil { // removed, and git still lists it
				continue
			}
			if read && below && !strings.Contains(file, "testdata/") {
				seen[file] = true
			}
		}
	}
	files := make([]string, 0, len(seen))
	for file := range seen {
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}

// findHabits adds the places in a file to found, and returns how many functions it declares that are no tests.
func findHabits(file string, found map[string][]place) (functions int, err error) {
	if strings.HasSuffix(file, ".md") {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		for i, line := range strings.Split(string(data), "\n") {
			findText(fmt.Sprintf("%s:%d", file, i+1), line, found)
		}
		return 0, nil
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	for _, group := range f.Comments {
		for _, paragraph := range strings.Split(group.Text(), "\n\n") {
			findText(set.Position(group.Pos()).String(), strings.ReplaceAll(paragraph, "\n", " "), found)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && strings.Contains(text, " ") {
				findText(set.Position(n.Pos()).String(), text, found)
			}
		case *ast.FuncDecl:
			if strings.HasSuffix(file, "_test.go") {
				break
			}
			functions++
			if name := n.Name.Name; name == strings.ToLower(name) && name != "main" && name != "init" {
				found["name"] = append(found["name"], place{set.Position(n.Pos()).String(), name})
			}
		}
		return true
	})
	return functions, nil
}

// findText adds the places in a text to found.
func findText(position, text string, found map[string][]place) {
	for _, h := range habits {
		if h.pattern == nil {
			continue
		}
		for _, at := range h.pattern.FindAllStringIndex(text, -1) {
			found[h.name] = append(found[h.name], place{position, strings.TrimSpace(text[max(0, at[0]-20):min(len(text), at[1]+40)])})
		}
	}
}

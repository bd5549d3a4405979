package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

// runSystems type-checks all packages and their tests, and all that they import, for each of
// the systems, such as darwin. It compiles nothing, and so takes a tenth of the time of a build.
func runSystems(ctx context.Context, systems []string) error {
	if len(systems) == 0 {
		return errors.New("name the systems, such as darwin and windows")
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	faults := 0
	for _, system := range systems {
		n, err := checkSystem(ctx, dir, system)
		if err != nil {
			return fmt.Errorf("%s: %w", system, err)
		}
		faults += n
	}
	if faults > 0 {
		return errFailed
	}
	return nil
}

// checkSystem type-checks the module in dir for a system, prints the errors, and returns their number.
func checkSystem(ctx context.Context, dir, system string) (faults int, err error) {
	loaded, err := packages.Load(&packages.Config{
		Context: ctx, Dir: dir, Tests: true,
		Mode: packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesSizes,
		Env:  append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"),
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
			generated := !strings.HasSuffix(name, ".go") // the main function of tests, in the cache
			if file != nil && !generated && !strings.HasPrefix(name, dir+string(os.PathSeparator)) {
				dropBodies(file)
			}
			return file, err
		},
	}, "./...")
	if err != nil {
		return 0, err
	}
	for _, pkg := range loaded {
		for _, fault := range pkg.Errors {
			fmt.Printf("%s: %v\n", system, fault)
			faults++
		}
	}
	fmt.Printf("%s: %d packages, %d errors\n", system, len(loaded), faults)
	return faults, nil
}

// dropBodies removes the bodies of a file's functions: other modules are not ours to check.
func dropBodies(file *ast.File) {
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
}

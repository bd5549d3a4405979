package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/net/html"
)

// A document holds the references of one HTML file, and the anchors that others may refer to.
type document struct {
	anchors   map[string]bool
	links     []string // of a elements
	resources []string // that a browser loads with the page
}

// checkSite reads the site and returns the number of its pages. The error lists dead links and anchors, missing files, and
// what a browser would load from another host.
func (s site) checkSite() (pages int, err error) {
	documents := map[string]*document{} // by their paths below out
	var problems []error
	err = filepath.WalkDir(s.out, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(s.out, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		documents[name] = &document{}
		switch path.Ext(name) {
		case ".html":
			pages++
			documents[name], err = parseDocument(string(data))
		case ".css", ".svg":
			for _, m := range remoteURL.FindAllStringSubmatch(string(data), -1) {
				problems = append(problems, fmt.Errorf("%s loads %s from another host", name, m[1]))
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for name, d := range documents {
		for _, link := range d.links {
			if u, err := url.Parse(link); err != nil || u.Host == "" && u.Scheme == "" && !s.hasTarget(documents, name, u) {
				problems = append(problems, fmt.Errorf("%s links to %s, which does not exist", name, link))
			}
		}
		for _, resource := range d.resources {
			u, err := url.Parse(resource)
			switch {
			case err == nil && u.Scheme == "data":
			case err != nil || u.Host != "" || u.Scheme != "":
				problems = append(problems, fmt.Errorf("%s loads %s from another host", name, resource))
			case !s.hasTarget(documents, name, u):
				problems = append(problems, fmt.Errorf("%s loads %s, which does not exist", name, resource))
			}
		}
	}
	return pages, errors.Join(problems...)
}

// remoteURL matches what a style sheet or a picture loads from another host.
var remoteURL = regexp.MustCompile(`(?:url\(|@import|<image[^>]*href=)\s*["']?((?:https?:)?//[^"')\s]+)`)

// hasTarget reports whether the target of a link in the document from exists, with its anchor.
func (s site) hasTarget(documents map[string]*document, from string, to *url.URL) bool {
	target := from
	if to.Path != "" {
		target = path.Join(path.Dir("/"+from), to.Path)
		if strings.HasPrefix(to.Path, "/") {
			rest, ok := strings.CutPrefix(to.Path, s.prefix)
			if !ok {
				return false
			}
			target = "/" + rest
		}
		if target = strings.TrimPrefix(target, "/"); target == "" || strings.HasSuffix(to.Path, "/") {
			target = path.Join(target, "index.html")
		}
	}
	d := documents[target]
	return d != nil && (to.Fragment == "" || d.anchors[to.Fragment])
}

// parseDocument returns what an HTML file refers to.
func parseDocument(text string) (*document, error) {
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	d := &document{anchors: map[string]bool{}}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			switch {
			case a.Key == "id":
				d.anchors[a.Val] = true
			case n.Data == "a" && a.Key == "href":
				d.links = append(d.links, a.Val)
			case a.Key == "src" || n.Data == "link" && a.Key == "href":
				d.resources = append(d.resources, a.Val)
			}
		}
	}
	return d, nil
}

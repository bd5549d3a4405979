//go:build !client

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// releases is the URL of the releases of Atoll.
const releases = "https://github.com/seed46cd37a8/atoll/releases"

// checkTimeout limits the request for the latest release.
const checkTimeout = 10 * time.Second

func newUpgrade(a *app) *cobra.Command {
	var check bool
	var from string
	cmd := &cobra.Command{
		Use:   "upgrade --check",
		Short: "Report whether there is a newer release",
		Long: `Report whether there is a newer release. Atoll asks for it only when you run this
command, and sends nothing but the request. It does not replace itself: install
the new release in the way in which you have installed this one.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !check {
				return usageErrorf("atoll does not replace itself: add --check, and install the release that it reports as you have installed this one")
			}
			ctx, stop := interruptContext(cmd.Context())
			defer stop()
			latest, err := findLatestRelease(ctx, from)
			if err != nil {
				return preferSignal(ctx, err)
			}
			_, err = fmt.Fprintln(a.stdout, compareRelease(buildVersion().Version, latest))
			return err
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "ask for the latest release and compare it with this program")
	cmd.Flags().StringVar(&from, "from", releases, "`url` of the releases, or of a mirror")
	return cmd
}

// findLatestRelease returns the version of the latest release at a URL, to whose page the forge redirects.
func findLatestRelease(ctx context.Context, from string) (string, error) {
	base, err := url.Parse(from)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return "", usageErrorf("--from %s: write it like %s", from, releases)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, base.JoinPath("latest").String(), nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("cannot ask for the latest release: %w", err)
	}
	resp.Body.Close()
	page, err := resp.Location()
	if err != nil {
		return "", fmt.Errorf("%s has no release: it answers %s", from, resp.Status)
	}
	latest := path.Base(page.Path)
	if !semver.IsValid(latest) {
		return "", fmt.Errorf("%s has no release: it leads to %s", from, page)
	}
	return latest, nil
}

// compareRelease describes the latest release to the user of a version.
func compareRelease(current, latest string) string {
	switch {
	case !semver.IsValid(current) || module.IsPseudoVersion(current):
		return fmt.Sprintf("The latest release is %s. This program is not a release: %s", latest, current)
	case semver.Compare(current, latest) >= 0:
		return fmt.Sprintf("atoll %s is up to date", current)
	}
	return fmt.Sprintf("atoll %s is available; this is %s: install it from %s/tag/%s", latest, current, releases, latest)
}

package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// Sync configures the store of versions of directories, and their limits.
type Sync struct {
	Store     string         `yaml:"store" alias:"S3_BUCKET_AGENT_DOCS" doc:"default store of versions of directories: s3://bucket/prefix, file:///directory, or the name of a bucket"`
	Endpoint  string         `yaml:"endpoint" doc:"S3 service with the buckets, if not AWS: https://host:port"`
	Region    string         `yaml:"region" doc:"region of the buckets; empty means that of AWS's own configuration"`
	PathStyle bool           `yaml:"path_style" doc:"put the name of a bucket into paths, as most self-hosted services require"`
	PlainHTTP bool           `yaml:"plain_http" doc:"allow an endpoint on another machine without TLS: everybody on the network path can read the data"`
	CA        string         `yaml:"ca" form:"path" doc:"PEM file with certificates that may have signed the service's, besides the system's"`
	AccessKey Secret         `yaml:"access_key" doc:"access key of the service, with secret_key; if empty, the credentials of AWS's own tools are used"`
	SecretKey Secret         `yaml:"secret_key" doc:"secret key of the service"`
	Stale     atoll.Duration `yaml:"stale_threshold" alias:"SANDBOX_SYNC_STALE_THRESHOLD" lenient:"true" doc:"age of a directory's state after which the store is asked again, like 1h"`
	Layout    string         `yaml:"layout" doc:"packed shares content between versions; files stores each file of each version as an object {version}/path, as other programs read and write them"`
	MaxFiles  int            `yaml:"max_files" doc:"most files of a version"`
	MaxBytes  atoll.Bytes    `yaml:"max_bytes" doc:"total size limit of a version, like 100g"`
}

func defaultSync() Sync {
	return Sync{Layout: string(filesync.LayoutPacked), Stale: atoll.Duration(filesync.DefaultStale), MaxFiles: filesync.DefaultMaxFiles, MaxBytes: filesync.DefaultMaxBytes}
}

// checkValues calls bad with the key of each invalid value.
func (s Sync) checkValues(bad func(key string, err error)) {
	if s.Store != "" {
		_, _, err := ParseStore(s.Store)
		bad("sync.store", err)
	}
	if s.AccessKey.IsZero() != s.SecretKey.IsZero() {
		bad("sync.access_key", fmt.Errorf("requires sync.secret_key, and the other way round"))
	}
	if err := filesync.CheckLayout(filesync.Layout(s.Layout)); err != nil {
		bad("sync.layout", fmt.Errorf("%q: write %s or %s", s.Layout, filesync.LayoutPacked, filesync.LayoutFiles))
	}
	if s.Stale < 0 {
		bad("sync.stale_threshold", fmt.Errorf("%s: must be positive", s.Stale))
	}
	if s.MaxFiles < 1 {
		bad("sync.max_files", fmt.Errorf("%d: must be positive", s.MaxFiles))
	}
	if s.MaxBytes < 1 {
		bad("sync.max_bytes", fmt.Errorf("%d: must be positive", s.MaxBytes))
	}
}

// ParseStore parses the URL of a place in a bucket: a directory, or a bucket of S3 and a key prefix.
func ParseStore(text string) (u *url.URL, prefix string, err error) {
	if !strings.Contains(text, "://") {
		text = "s3://" + text
	}
	u, err = url.Parse(text)
	switch {
	case err != nil:
		return nil, "", err
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, "", fmt.Errorf("%q: must not have a user, a query or a fragment", text)
	case u.Scheme == "s3" && u.Host != "":
		return u, strings.Trim(u.Path, "/"), nil
	case u.Scheme == "file" && u.Host == "" && filepath.IsAbs(filepath.FromSlash(u.Path)):
		return u, "", nil
	}
	return nil, "", fmt.Errorf("%q: write s3://bucket/prefix or file:///directory", text)
}

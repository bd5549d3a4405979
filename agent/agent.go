// Package agent has the vocabulary of agents and their conversations: conversations,
// messages, turns, sandboxes of agents and their files. It is pure data, which the HTTP API,
// stores and package conversation share.
package agent

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Conversation is messages and token counts, tied to one sandbox. Its id is the
// client's to choose; with its account that names it.
type Conversation struct {
	ID           string    `json:"id"` // see ConversationID
	Account      string    `json:"account"`
	Organization string    `json:"organization,omitempty"`
	Agent        string    `json:"agent_id,omitempty"`   // that it is with; see ValidName
	Template     string    `json:"provider"`             // the name of the template of its sandbox
	Sandbox      string    `json:"sandbox_id,omitempty"` // that it is linked with
	Stats        Stats     `json:"stats"`
	Turn         *Turn     `json:"turn,omitempty"` // that runs now
	Created      time.Time `json:"created"`
	Updated      time.Time `json:"updated"` // when its last message was saved, or its link was changed
}

// ConversationID returns the id of a conversation in the form in which it is kept: a
// UUID as 32 lower-case hex digits, any other name as it is. Kinds: ErrInvalid.
func ConversationID(id string) (string, error) {
	if len(id) == 36 && strings.Count(id, "-") == 4 {
		if plain, err := atoll.NormalizeID(id); err == nil {
			return plain, nil
		}
	}
	if !atoll.ValidName(id) {
		return "", atoll.Errorf("conversation", id, atoll.ErrInvalid, "id %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", id)
	}
	return id, nil
}

// Stats add up over the messages of a conversation.
type Stats struct {
	MessagesExchanged int64 `json:"messages_exchanged"`
	InputTokens       int64 `json:"total_input_tokens"`
	OutputTokens      int64 `json:"total_output_tokens"`
	CacheTokens       int64 `json:"total_cache_tokens"`
}

// TokenUsage is what models were given and gave, in tokens.
type TokenUsage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
	Cache  int64 `json:"cache_tokens"` // of what was given, those that were read from a cache, or written to it; not part of Input
}

// Add adds v to u.
func (u *TokenUsage) Add(v TokenUsage) {
	u.Input += v.Input
	u.Output += v.Output
	u.Cache += v.Cache
}

// A Role is whose a message is.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // what tools gave that the assistant has called
)

// A Message is one message of a conversation.
type Message struct {
	Key          string     `json:"key"` // unique; a UUID
	Conversation string     `json:"conversation_id"`
	Account      string     `json:"-"`
	Turn         string     `json:"turn_id,omitempty"` // that it was part of
	Role         Role       `json:"role"`
	Body         string     `json:"body"`
	Time         time.Time  `json:"timestamp"` // to the microsecond; that of each is after the one before it
	Tokens       TokenUsage `json:"tokens,omitzero"`
	ToolCalls    []ToolCall `json:"tool_calls,omitempty"`
}

// A ToolCall is a tool's call in a message of the assistant, or what it gave in
// one of a tool.
type ToolCall struct {
	ID     string          `json:"id"`
	Type   string          `json:"type"` // "function"
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input,omitempty"`  // JSON
	Output string          `json:"output,omitempty"` // text, or JSON
	Status string          `json:"status,omitempty"` // see below
	Error  string          `json:"error,omitempty"`
}

// The Status of a ToolCall.
const (
	ToolCalled    = "called"
	ToolCompleted = "completed"
	ToolFailed    = "failed"
)

// A Turn is a prompt and what an agent does about it. A conversation has one at a
// time.
type Turn struct {
	ID      string    `json:"id"`
	Server  string    `json:"server"`               // that runs it
	Sandbox string    `json:"sandbox_id,omitempty"` // in which the agent runs
	Process string    `json:"process_id,omitempty"` // the agent's, once it was started
	Raw     bool      `json:"raw,omitempty"`        // its events are the agent's own lines
	Started time.Time `json:"started"`
}

// A Prompt begins a turn.
type Prompt struct {
	Conversation string // its id; one that is not there is made
	Sandbox      string // id or name of the sandbox; one that is not there is made
	Agent        string // of a conversation that is made; "" is none
	Organization string // of a conversation that is made; "" is none
	Template     string // of a conversation that is made; "" is the default one
	Text         string
	Raw          bool // the events are the agent's own lines
}

// A TurnEvent is one event of a turn.
type TurnEvent struct {
	ID   string // "TURN:NUMBER"; whoever gives it back is told what came after
	Data []byte // JSON in one line; of a raw one, the line
}

// A Sandbox is what is known of a sandbox that was made from a template, or that
// a conversation was linked with, whether it is there or not.
type Sandbox struct {
	ID           string      `json:"id"` // of the sandbox, also of one that takes its place
	Account      string      `json:"account"`
	Organization string      `json:"organization,omitempty"`
	Agent        string      `json:"agent_id,omitempty"`
	Template     string      `json:"provider"`                  // the name of its template
	External     string      `json:"external_id"`               // what its provider knows it by
	Conversation string      `json:"conversation_id,omitempty"` // that it is linked with
	Meta         SandboxMeta `json:"meta_data"`
	Created      time.Time   `json:"created"`
	Deleted      time.Time   `json:"deleted,omitzero"` // when it was; what is known of it is kept
	State        atoll.State `json:"state,omitempty"`  // when it was asked for; StateRemoved when it is gone. It is not kept
}

// SandboxMeta says how the files of a sandbox were last synced.
type SandboxMeta struct {
	LastSync  int64      `json:"last_s3_sync,omitempty"` // in seconds since 1970; 0 is never
	SyncStats *SyncStats `json:"sync_stats,omitempty"`
	SyncError string     `json:"sync_error,omitempty"` // why the last attempt failed; "" if it did not
}

// SyncStats say what a push to object storage did, or a pull from it.
type SyncStats struct {
	Version          int64 `json:"version,omitempty"` // that there is now; 0 if there is none
	FilesDownloaded  int   `json:"files_downloaded"`
	FilesUploaded    int   `json:"files_uploaded"`
	FilesDeleted     int   `json:"files_deleted"`
	FilesSkipped     int   `json:"files_skipped"`
	BytesTransferred int64 `json:"bytes_transferred"`
	Duration         int64 `json:"duration_ms"`
	Conflicts        int   `json:"conflicts,omitempty"` // files that both sides had changed
	Failed           int   `json:"failed,omitempty"`    // files that could not be read or written
}

// Where files of a Sandbox are read.
const (
	SourceVolume = "volume" // the sandbox itself
	SourceS3     = "s3"     // the latest version in object storage, whether the sandbox is there or not
)

// A FileQuery says which files are wanted.
type FileQuery struct {
	Source  string // SourceVolume or SourceS3
	Path    string // relative to the directory that is synced; "" is that
	Flat    bool   // not what is in directories below
	Page    int    // from 1
	PerPage int    // 1..1000
}

// A File is a file of a Sandbox.
type File struct {
	Name      string `json:"name"`
	Path      string `json:"path"` // relative to the directory that is synced
	Size      int64  `json:"size"`
	Modified  int64  `json:"modified_at"` // in seconds since 1970
	Directory bool   `json:"is_directory"`
	Checksum  string `json:"checksum,omitempty"` // MD5 in hex, of one in object storage
	Target    string `json:"target,omitempty"`   // of a link
	Children  []File `json:"children,omitempty"` // in a tree only
}

// A FilePage is a part of a list of files, sorted by path.
type FilePage struct {
	Files      []File `json:"files"`
	Total      int    `json:"total_count"`
	Page       int    `json:"page"`
	PerPage    int    `json:"per_page"`
	TotalPages int    `json:"total_pages"`
}

// A SandboxVersion is a version of the files of a Sandbox in object storage.
type SandboxVersion struct {
	Version int64     `json:"version"`
	Latest  bool      `json:"latest,omitempty"`
	Pushed  time.Time `json:"pushed"`
}

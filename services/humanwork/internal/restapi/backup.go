package restapi

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Check is what a check of an organization's AgentFS found.
type Check struct {
	Faults []struct {
		Kind     string `json:"kind"`
		Message  string `json:"message"`
		Repaired bool   `json:"repaired"`
	} `json:"faults"`
	Truncated     bool   `json:"truncated"` // there were more faults
	Inodes        int64  `json:"inodes,string"`
	Bytes         int64  `json:"bytes,string"`
	LedgerRecords int64  `json:"ledgerRecords,string"`
	Snapshot      string `json:"snapshot"` // taken before a repair
}

// CheckAgentFS looks for faults in an organization's AgentFS, and mends them with repair.
func (c *Client) CheckAgentFS(ctx context.Context, organization string, repair bool) (Item[Check], error) {
	var out Item[Check]
	err := c.Call(ctx, http.MethodPost, agentfs(organization)+":check", nil, map[string]bool{"repair": repair}, &out)
	return out, err
}

func agentfs(organization string) string {
	return Conversation{Organization: organization}.Path() + "/agentfs"
}

// Snapshot is a kept copy of an organization's AgentFS.
type Snapshot struct {
	Name       string    `json:"name"`
	CreateTime time.Time `json:"createTime"`
	Size       int64     `json:"size,string"` // bytes of the file
}

// CreateSnapshot keeps a copy; an empty name is made from the time.
func (c *Client) CreateSnapshot(ctx context.Context, organization, name string) (Item[Snapshot], error) {
	body := map[string]string{}
	if name != "" {
		body["name"] = name
	}
	var out Item[Snapshot]
	err := c.Call(ctx, http.MethodPost, agentfs(organization)+"/snapshots", nil, body, &out)
	return out, err
}

// Snapshots lists all, newest first.
func (c *Client) Snapshots(ctx context.Context, organization string) ([]Item[Snapshot], error) {
	var out struct {
		Snapshots []Item[Snapshot] `json:"snapshots"`
	}
	err := c.Call(ctx, http.MethodGet, agentfs(organization)+"/snapshots", nil, nil, &out)
	return out.Snapshots, err
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, organization, name string) error {
	return c.Call(ctx, http.MethodDelete, agentfs(organization)+"/snapshots/"+url.PathEscape(name), nil, nil, nil)
}

// Export begins to read a copy of an organization's AgentFS, of a snapshot or, if empty, of now.
func (c *Client) Export(ctx context.Context, organization, snapshot string) (Content, error) {
	path := agentfs(organization) + "/export"
	if snapshot != "" {
		path += "?" + url.Values{"snapshot": {snapshot}}.Encode()
	}
	return c.download(ctx, path)
}

// Restored says where the database before a restore is kept.
type Restored struct {
	Previous Snapshot `json:"previous"`
}

// RestoreSnapshot replaces an organization's AgentFS by a snapshot.
func (c *Client) RestoreSnapshot(ctx context.Context, organization, snapshot string) (Item[Restored], error) {
	var out Item[Restored]
	err := c.Call(ctx, http.MethodPost, agentfs(organization)+":restore?"+url.Values{"snapshot": {snapshot}}.Encode(), nil, nil, &out)
	return out, err
}

// Restore replaces an organization's AgentFS by a database of size bytes, -1: as many as there are.
func (c *Client) Restore(ctx context.Context, organization string, database io.Reader, size int64) (Item[Restored], error) {
	var out Item[Restored]
	_, err := c.upload(ctx, http.MethodPost, agentfs(organization)+":restore", nil, source{database}, size, &out)
	return out, err
}

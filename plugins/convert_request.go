package plugins

import (
	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

func describeToWire(d bridges.Description) *bridgev1.DescribeResponse {
	return &bridgev1.DescribeResponse{
		Name: text(d.Name), Version: text(d.Version),
		Contract:     mapList(d.Contract, func(v int) int32 { return int32(v) }),
		Capabilities: mapList(d.Capabilities, func(c bridges.Capability) string { return text(string(c)) }),
	}
}

func describeFromWire(m *bridgev1.DescribeResponse) bridges.Description {
	return bridges.Description{
		Name: m.GetName(), Version: m.GetVersion(),
		Contract:     mapList(m.GetContract(), func(v int32) int { return int(v) }),
		Capabilities: mapList(m.GetCapabilities(), func(c string) bridges.Capability { return bridges.Capability(c) }),
	}
}

func createToWire(r bridges.CreateRequest) *bridgev1.CreateRequest {
	return &bridgev1.CreateRequest{
		SessionId: r.SessionID, Agent: agentToWire(r.Agent), Settings: settingsToWire(r.Settings),
		Folders: foldersToWire(r.Folders), Keeping: keepingToWire(r.Keeping),
		ForkFrom: fromPtr(r.ForkFrom, handleToWire),
	}
}

func createFromWire(m *bridgev1.CreateRequest) bridges.CreateRequest {
	return bridges.CreateRequest{
		SessionID: m.GetSessionId(), Agent: agentFromWire(m.GetAgent()), Settings: settingsFromWire(m.GetSettings()),
		Folders: foldersFromWire(m.GetFolders()), Keeping: keepingFromWire(m.GetKeeping()),
		ForkFrom: toPtr(m.GetForkFrom(), handleFromWire),
	}
}

func createdToWire(c bridges.Created) *bridgev1.CreateResponse {
	return &bridgev1.CreateResponse{Handle: handleToWire(c.Handle), Info: infoToWire(c.Info)}
}

func createdFromWire(m *bridgev1.CreateResponse) bridges.Created {
	return bridges.Created{Handle: handleFromWire(m.GetHandle()), Info: infoFromWire(m.GetInfo())}
}

func startToWire(r bridges.SubmitRequest) *bridgev1.SubmitRequest_Start {
	return &bridgev1.SubmitRequest_Start{
		SessionId: r.SessionID, TurnId: r.TurnID, Agent: agentToWire(r.Agent), Handle: handleToWire(r.Handle),
		Settings: settingsToWire(r.Settings), Folders: foldersToWire(r.Folders), Keeping: keepingToWire(r.Keeping),
		Task: r.Task,
		Resume: fromPtr(r.Resume, func(r bridges.Resume) *bridgev1.SubmitRequest_Resume {
			return &bridgev1.SubmitRequest_Resume{After: positionToWire(r.After), Cancel: r.Cancel}
		}),
	}
}

func startFromWire(m *bridgev1.SubmitRequest_Start) bridges.SubmitRequest {
	return bridges.SubmitRequest{
		SessionID: m.GetSessionId(), TurnID: m.GetTurnId(), Agent: agentFromWire(m.GetAgent()),
		Handle: handleFromWire(m.GetHandle()), Settings: settingsFromWire(m.GetSettings()),
		Folders: foldersFromWire(m.GetFolders()), Keeping: keepingFromWire(m.GetKeeping()), Task: m.GetTask(),
		Resume: toPtr(m.GetResume(), func(r *bridgev1.SubmitRequest_Resume) bridges.Resume {
			return bridges.Resume{After: positionFromWire(r.GetAfter()), Cancel: r.GetCancel()}
		}),
	}
}

func reconnectToWire(r bridges.ReconnectRequest) *bridgev1.ReconnectRequest {
	return &bridgev1.ReconnectRequest{
		SessionId: r.SessionID, Agent: agentToWire(r.Agent), Handle: handleToWire(r.Handle),
		Settings: settingsToWire(r.Settings), Folders: foldersToWire(r.Folders), Keeping: keepingToWire(r.Keeping),
		TurnId: r.TurnID,
	}
}

func reconnectFromWire(m *bridgev1.ReconnectRequest) bridges.ReconnectRequest {
	return bridges.ReconnectRequest{
		SessionID: m.GetSessionId(), Agent: agentFromWire(m.GetAgent()), Handle: handleFromWire(m.GetHandle()),
		Settings: settingsFromWire(m.GetSettings()), Folders: foldersFromWire(m.GetFolders()),
		Keeping: keepingFromWire(m.GetKeeping()), TurnID: m.GetTurnId(),
	}
}

func reconnectedToWire(r bridges.Reconnected) *bridgev1.ReconnectResponse {
	return &bridgev1.ReconnectResponse{
		Status: number[bridgev1.ReconnectStatus](reconnects, r.Status), Reason: text(r.Reason),
		Handle: handleToWire(r.Handle), Info: infoToWire(r.Info),
		Turn: number[bridgev1.TurnState](turnStates, r.Turn),
	}
}

func reconnectedFromWire(m *bridgev1.ReconnectResponse) bridges.Reconnected {
	return bridges.Reconnected{
		Status: word(reconnects, m.GetStatus()), Reason: m.GetReason(),
		Handle: handleFromWire(m.GetHandle()), Info: infoFromWire(m.GetInfo()), Turn: word(turnStates, m.GetTurn()),
	}
}

func disposeToWire(r bridges.DisposeRequest) *bridgev1.DisposeRequest {
	return &bridgev1.DisposeRequest{
		SessionId: r.SessionID, Agent: agentToWire(r.Agent), Handle: handleToWire(r.Handle),
		Settings: settingsToWire(r.Settings), Folders: foldersToWire(r.Folders), Delete: r.Delete,
		Grace: durationToWire(r.Grace),
	}
}

func disposeFromWire(m *bridgev1.DisposeRequest) bridges.DisposeRequest {
	return bridges.DisposeRequest{
		SessionID: m.GetSessionId(), Agent: agentFromWire(m.GetAgent()), Handle: handleFromWire(m.GetHandle()),
		Settings: settingsFromWire(m.GetSettings()), Folders: foldersFromWire(m.GetFolders()), Delete: m.GetDelete(),
		Grace: m.GetGrace().AsDuration(),
	}
}

func agentToWire(a bridges.Agent) *bridgev1.Agent {
	return &bridgev1.Agent{
		Name: a.Name, Command: a.Command, Env: a.Env, PassEnv: a.PassEnv,
		Login: a.Login, LoginHint: a.LoginHint, Options: a.Options,
	}
}

func agentFromWire(m *bridgev1.Agent) bridges.Agent {
	return bridges.Agent{
		Name: m.GetName(), Command: m.GetCommand(), Env: m.GetEnv(), PassEnv: m.GetPassEnv(),
		Login: m.GetLogin(), LoginHint: m.GetLoginHint(), Options: rawJSON(m.GetOptions()),
	}
}

func settingsToWire(s bridges.Settings) *bridgev1.Settings {
	return &bridgev1.Settings{
		Mode: modeToWire(s.Mode), Accept: number[bridgev1.HoldStrength](strengths, s.Accept), Cwd: s.Cwd,
		Model: s.Model, Effort: s.Effort, Instructions: s.Instructions, Env: s.Env,
		McpServers: mapList(s.MCPServers, func(m bridges.MCPServer) *bridgev1.McpServer {
			return &bridgev1.McpServer{Name: m.Name, Command: m.Command, Args: m.Args, Env: m.Env}
		}),
	}
}

func settingsFromWire(m *bridgev1.Settings) bridges.Settings {
	return bridges.Settings{
		Mode: modeFromWire(m.GetMode()), Accept: word(strengths, m.GetAccept()), Cwd: m.GetCwd(),
		Model: m.GetModel(), Effort: m.GetEffort(), Instructions: m.GetInstructions(), Env: m.GetEnv(),
		MCPServers: mapList(m.GetMcpServers(), func(m *bridgev1.McpServer) bridges.MCPServer {
			return bridges.MCPServer{Name: m.GetName(), Command: m.GetCommand(), Args: m.GetArgs(), Env: m.GetEnv()}
		}),
	}
}

func foldersToWire(f bridges.Folders) *bridgev1.Folders {
	return &bridgev1.Folders{Run: f.Run, State: f.State}
}

func foldersFromWire(m *bridgev1.Folders) bridges.Folders {
	return bridges.Folders{Run: m.GetRun(), State: m.GetState()}
}

func keepingToWire(k bridges.Keeping) *bridgev1.Keeping {
	return &bridgev1.Keeping{Lease: k.Lease, Grace: durationToWire(k.Grace)}
}

func keepingFromWire(m *bridgev1.Keeping) bridges.Keeping {
	return bridges.Keeping{Lease: m.GetLease(), Grace: m.GetGrace().AsDuration()}
}

func handleToWire(h bridges.Handle) *bridgev1.Handle {
	return &bridgev1.Handle{Version: int64(h.Version), Data: h.Data}
}

func handleFromWire(m *bridgev1.Handle) bridges.Handle {
	return bridges.Handle{Version: int(m.GetVersion()), Data: rawJSON(m.GetData())}
}

func infoToWire(i bridges.Info) *bridgev1.Info {
	return &bridgev1.Info{
		NativeId: text(i.NativeID), AgentVersion: text(i.AgentVersion), Model: text(i.Model), Effort: text(i.Effort),
		Hold: &bridgev1.Hold{
			Strength: number[bridgev1.HoldStrength](strengths, i.Hold.Strength), Detail: text(i.Hold.Detail),
		},
		Models: texts(i.Models), Efforts: texts(i.Efforts), Warnings: texts(i.Warnings),
	}
}

func infoFromWire(m *bridgev1.Info) bridges.Info {
	return bridges.Info{
		NativeID: m.GetNativeId(), AgentVersion: m.GetAgentVersion(), Model: m.GetModel(), Effort: m.GetEffort(),
		Hold:   bridges.Hold{Strength: word(strengths, m.GetHold().GetStrength()), Detail: m.GetHold().GetDetail()},
		Models: m.GetModels(), Efforts: m.GetEfforts(), Warnings: m.GetWarnings(),
	}
}

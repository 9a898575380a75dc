package plugins

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/subspan-dev/subspan/bridges"
	bridgev1 "github.com/subspan-dev/subspan/proto/bridge/v1"
)

func eventToWire(e *bridges.Event) *bridgev1.Event {
	return &bridgev1.Event{
		Kind: text(string(e.Kind)), Id: text(e.ID), Pos: positionToWire(e.Pos), Text: text(e.Text),
		Tool: fromPtr(e.Tool, toolToWire),
		Plan: mapList(e.Plan, func(p bridges.PlanEntry) *bridgev1.PlanEntry {
			return &bridgev1.PlanEntry{Text: text(p.Text), Status: text(p.Status), Priority: text(p.Priority)}
		}),
		Usage: fromPtr(e.Usage, usageToWire),
		Notice: fromPtr(e.Notice, func(n bridges.Notice) *bridgev1.Notice {
			return &bridgev1.Notice{Level: text(n.Level), Code: text(n.Code)}
		}),
		Session: fromPtr(e.Session, func(s bridges.SessionUpdate) *bridgev1.SessionUpdate {
			return &bridgev1.SessionUpdate{
				Handle: fromPtr(s.Handle, handleToWire), Info: fromPtr(s.Info, infoToWire), Title: text(s.Title),
			}
		}),
		Question: fromPtr(e.Question, questionToWire),
		Answer:   fromPtr(e.Answer, answerToWire),
		Raw:      e.Raw,
	}
}

func eventFromWire(m *bridgev1.Event) bridges.Event {
	return bridges.Event{
		Kind: bridges.Kind(m.GetKind()), ID: m.GetId(), Pos: positionFromWire(m.GetPos()), Text: m.GetText(),
		Tool: toPtr(m.GetTool(), toolFromWire),
		Plan: mapList(m.GetPlan(), func(p *bridgev1.PlanEntry) bridges.PlanEntry {
			return bridges.PlanEntry{Text: p.GetText(), Status: p.GetStatus(), Priority: p.GetPriority()}
		}),
		Usage: toPtr(m.GetUsage(), usageFromWire),
		Notice: toPtr(m.GetNotice(), func(n *bridgev1.Notice) bridges.Notice {
			return bridges.Notice{Level: n.GetLevel(), Code: n.GetCode()}
		}),
		Session: toPtr(m.GetSession(), func(s *bridgev1.SessionUpdate) bridges.SessionUpdate {
			return bridges.SessionUpdate{
				Handle: toPtr(s.GetHandle(), handleFromWire), Info: toPtr(s.GetInfo(), infoFromWire), Title: s.GetTitle(),
			}
		}),
		Question: toPtr(m.GetQuestion(), questionFromWire),
		Answer:   toPtr(m.GetAnswer(), answerFromWire),
		Raw:      rawJSON(m.GetRaw()),
	}
}

func positionToWire(p bridges.Position) *bridgev1.Position {
	if p.IsZero() {
		return nil
	}
	return &bridgev1.Position{Offset: p.Offset, Part: int64(p.Part)}
}

func positionFromWire(m *bridgev1.Position) bridges.Position {
	return bridges.Position{Offset: m.GetOffset(), Part: int(m.GetPart())}
}

func toolToWire(t bridges.Tool) *bridgev1.Tool {
	return &bridgev1.Tool{
		Name: text(t.Name), Title: text(t.Title), Kind: text(string(t.Kind)), Status: text(string(t.Status)),
		Input: t.Input, Output: text(t.Output), Locations: texts(t.Locations),
	}
}

func toolFromWire(m *bridgev1.Tool) bridges.Tool {
	return bridges.Tool{
		Name: m.GetName(), Title: m.GetTitle(), Kind: bridges.ToolKind(m.GetKind()),
		Status: bridges.ToolStatus(m.GetStatus()), Input: rawJSON(m.GetInput()), Output: m.GetOutput(),
		Locations: m.GetLocations(),
	}
}

func usageToWire(u bridges.Usage) *bridgev1.Usage {
	return &bridgev1.Usage{
		Input: u.Input, Output: u.Output, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite, Reasoning: u.Reasoning,
		CostUsd: u.CostUSD, Source: text(u.Source), ContextUsed: u.ContextUsed, ContextSize: u.ContextSize, Raw: u.Raw,
	}
}

func usageFromWire(m *bridgev1.Usage) bridges.Usage {
	return bridges.Usage{
		Input: m.GetInput(), Output: m.GetOutput(), CacheRead: m.GetCacheRead(), CacheWrite: m.GetCacheWrite(),
		Reasoning: m.GetReasoning(), CostUSD: m.GetCostUsd(), Source: m.GetSource(),
		ContextUsed: m.GetContextUsed(), ContextSize: m.GetContextSize(), Raw: rawJSON(m.GetRaw()),
	}
}

func questionToWire(q bridges.Question) *bridgev1.Question {
	return &bridgev1.Question{
		Id: text(q.ID), ToolId: text(q.ToolID), Tool: toolToWire(q.Tool), Title: text(q.Title),
		Choices: texts(q.Choices), Pos: positionToWire(q.Pos), Raw: q.Raw,
	}
}

func questionFromWire(m *bridgev1.Question) bridges.Question {
	return bridges.Question{
		ID: m.GetId(), ToolID: m.GetToolId(), Tool: toolFromWire(m.GetTool()), Title: m.GetTitle(),
		Choices: m.GetChoices(), Pos: positionFromWire(m.GetPos()), Raw: rawJSON(m.GetRaw()),
	}
}

func answerToWire(a bridges.Answer) *bridgev1.Answer {
	return &bridgev1.Answer{
		Decision: number[bridgev1.Decision](decisions, a.Decision), Choice: text(a.Choice),
		Reason: text(a.Reason), By: text(a.By),
	}
}

func answerFromWire(m *bridgev1.Answer) bridges.Answer {
	a := bridges.Answer{
		Decision: word(decisions, m.GetDecision()), Choice: m.GetChoice(), Reason: m.GetReason(), By: m.GetBy(),
	}
	if a.Decision == "" {
		a.Decision = bridges.Deny
	}
	return a
}

func resultToWire(r bridges.Result) *bridgev1.Result {
	return &bridgev1.Result{
		Status: number[bridgev1.ResultStatus](statuses, r.Status), StopReason: text(r.StopReason),
		Usage: fromPtr(r.Usage, usageToWire), Model: text(r.Model), Error: fromPtr(r.Error, errorToWire),
		Warnings: texts(r.Warnings), Denied: int64(r.Denied),
	}
}

func resultFromWire(m *bridgev1.Result) bridges.Result {
	r := bridges.Result{
		Status: word(statuses, m.GetStatus()), StopReason: m.GetStopReason(),
		Usage: toPtr(m.GetUsage(), usageFromWire), Model: m.GetModel(),
		Warnings: m.GetWarnings(), Denied: int(m.GetDenied()),
	}
	if m.GetError() != nil {
		r.Error = errorFromWire(m.GetError())
	}
	return r
}

func receiptToWire(r bridges.Receipt) *bridgev1.DisposeResponse {
	return &bridgev1.DisposeResponse{
		Ended: mapList(r.Ended, processToWire), Survived: mapList(r.Survived, processToWire),
		EndedCount: int64(r.EndedCount), SurvivedCount: int64(r.SurvivedCount), Proven: r.Proven,
		Exit: fromPtr(r.Exit, exitToWire), Notes: texts(r.Notes),
	}
}

func receiptFromWire(m *bridgev1.DisposeResponse) bridges.Receipt {
	return bridges.Receipt{
		Ended: mapList(m.GetEnded(), processFromWire), Survived: mapList(m.GetSurvived(), processFromWire),
		EndedCount: int(m.GetEndedCount()), SurvivedCount: int(m.GetSurvivedCount()), Proven: m.GetProven(),
		Exit: toPtr(m.GetExit(), exitFromWire), Notes: m.GetNotes(),
	}
}

func processToWire(p bridges.Process) *bridgev1.Process {
	return &bridgev1.Process{Pid: int64(p.PID), Start: p.Start, Command: text(p.Command)}
}

func processFromWire(m *bridgev1.Process) bridges.Process {
	return bridges.Process{PID: int(m.GetPid()), Start: m.GetStart(), Command: m.GetCommand()}
}

func exitToWire(e bridges.Exit) *bridgev1.Exit {
	m := &bridgev1.Exit{Code: int32(e.Code), Signal: text(e.Signal), Ordered: text(e.Ordered), Stderr: text(e.Stderr)}
	if !e.At.IsZero() {
		m.At = timestamppb.New(e.At)
	}
	return m
}

func exitFromWire(m *bridgev1.Exit) bridges.Exit {
	var at time.Time
	if m.GetAt() != nil {
		at = m.GetAt().AsTime()
	}
	return bridges.Exit{
		Code: int(m.GetCode()), Signal: m.GetSignal(), At: at, Ordered: m.GetOrdered(), Stderr: m.GetStderr(),
	}
}

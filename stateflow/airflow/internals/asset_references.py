"""Outlets that name an asset without being one."""

from __future__ import annotations

from airflow.sdk.definitions.asset import AssetRef as AssetRef

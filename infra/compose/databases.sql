-- One database per server; run once, when the volume is new.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
CREATE DATABASE prefect;
